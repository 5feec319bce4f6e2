"""What convicts: evidence, bans, equivocation."""
