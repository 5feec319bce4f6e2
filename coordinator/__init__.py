"""Joint decisions of peers: manifest, pacing, groups, rounds, certificates. Holds no tensors.

*Coordinator* is a role, not a server: every peer embeds it (design §3).
"""
