"""`muster swarm`: runs many peers on this machine."""
