"""What the processes of one learner compute and save together."""
