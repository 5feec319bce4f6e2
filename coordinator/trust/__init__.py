"""What convicts: evidence, bans, equivocation, scores."""
