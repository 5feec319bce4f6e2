"""`muster swarm`: many peers on this machine."""
