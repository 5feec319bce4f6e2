"""The protocol core under virtual time: a whole seeded swarm in one process, with every fault we can think of.

Product code: tests, `muster lab`, `muster plan swarm` and the dashboard's demo drive it. Tensors are behind a port.
"""
