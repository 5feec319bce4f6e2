"""Hostile learners, by name: for the lab and for swarms on one machine, never for a real run."""
