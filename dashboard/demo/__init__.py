"""A made-up network to look at before there is a real one.

The rounds are those of the real protocol core in the simulator (`coordinator.simulator`): joins, crashes, a partition
and a peer that contradicts itself and is banned. Names, devices and losses are invented; so is the crowd that makes
such a network as large as one likes. Everything follows from a seed and the virtual time.
"""
