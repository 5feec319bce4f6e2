"""The owner's computer: clock, hours, limits, sensors, pauses, signals, paths, exit codes, log."""
