"""The gradient of a batch: the model, the batch read ahead, the pieces it is split into, and the loss."""
