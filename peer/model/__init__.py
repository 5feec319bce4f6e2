"""The trained model: its description, families, construction and flat parameters."""
