"""Observers, which read a run without taking part in it."""
