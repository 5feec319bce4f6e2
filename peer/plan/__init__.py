"""Answers before a run starts: the cost of failures, and the links needed."""
