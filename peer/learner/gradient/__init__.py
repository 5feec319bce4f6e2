"""The gradient of a batch: under which model, what is read ahead, in which pieces, and what the loss keeps."""
