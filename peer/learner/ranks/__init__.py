"""The processes of a learner on several devices: the first, which its peer talks to, and those that follow it."""
