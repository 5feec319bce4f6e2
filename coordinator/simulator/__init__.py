"""The protocol core under virtual time: a whole swarm in one process, seeded, with every fault we can think of.

Product code: tests, `muster lab`, `muster plan swarm` and the dashboard's demo drive it. Tensors are behind a port.
"""
