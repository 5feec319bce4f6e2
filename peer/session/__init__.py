"""`Session`: lets a training loop of one's own take part in a run."""
