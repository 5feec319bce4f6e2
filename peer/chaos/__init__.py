"""Breaks a swarm of real processes on purpose and measures what that costs (`muster chaos`)."""
