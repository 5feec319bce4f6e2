"""Many learners in one process, training for real under virtual time: `muster lab` (design §3, §11)."""
