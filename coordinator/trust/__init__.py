"""Convictions of keys: evidence, bans, orders, equivocation."""
