"""Answers before anybody is invited: what failures cost, and what links are needed."""
