"""State transfer to newcomers and latecomers: requests, uploads, and proofs of pieces."""
