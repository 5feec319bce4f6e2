"""Does the work: learner, model, data, merge, transports, checkpoints and the command line."""
