"""`Session`: a training loop of one's own takes part in a run."""
