"""The libp2p daemon that a peer runs: its process, settings, ports, and whether it is still alive."""
