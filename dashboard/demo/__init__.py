"""A simulated network to look at before there is a real one.

The rounds are those of the real protocol core in the simulator (`coordinator.simulator`): joins, crashes, a partition
and a peer that contradicts itself and is banned. Names, devices and losses are invented. So is the crowd, which makes
the network as large as asked for. Everything follows from a seed and the virtual time.
"""
