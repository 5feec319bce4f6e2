"""Hostile learners, by name (`byzantine.md` §3.1): for the lab and for swarms on one machine, never for a real run."""
