"""The processes of a learner with several devices: the first, which its peer knows, and those that follow it."""
