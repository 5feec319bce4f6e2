"""How a learner steps: the optimizer that a run names, and what stands between it and the parameters."""
