"""Merge rules that a minority of hostile members cannot steer: pure functions from n vectors and weights to one.

`rules` has them by name, for whole vectors; `segments` is what a reducer calls, who sees a part of every tensor.
What each rule guarantees and costs is in docs/explanation/merging.md.
"""
