"""Everything that peers send each other: messages, openings, Merkle trees, presence, committed inputs."""
