"""Merge rules that a minority of hostile members cannot steer: pure functions from n vectors and weights to one.

`rules` has them by name, for whole vectors. A reducer, which sees a part of every tensor, calls `segments`.
docs/explanation/merging.md says what each rule guarantees and costs.
"""
