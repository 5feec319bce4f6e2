"""Hostile behaviour by name, for the simulator, the lab and real processes."""
