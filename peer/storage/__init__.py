"""What a peer keeps on disk: run directory, checkpoints, anchors, votes, certificates, evidence, credit."""
