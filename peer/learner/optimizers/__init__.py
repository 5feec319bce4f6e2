"""The inner optimizers that a run can name, and the layer between them and the parameters."""
