"""What peers say to each other: messages, openings, Merkle trees, presence, committed inputs."""
