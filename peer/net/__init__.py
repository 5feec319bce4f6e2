"""Frames and streams between peers, the hivemind transport, addresses, presence."""
