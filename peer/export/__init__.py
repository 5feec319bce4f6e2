"""Exports of a run: folders that `transformers` loads and that carry their own proof (design §9)."""
