"""How everybody's work counts beyond 32 peers."""
