"""The gradient of a batch: what is read ahead, in what pieces it goes through the model, and what the loss keeps."""
