"""Deliberate faults in a swarm of real processes, and measurements of their cost (`muster chaos`)."""
