"""A run as a folder that `transformers` loads and that proves itself (design §9)."""
