"""The protocol engine, its single entrance: fragments, fork choice, gossip, enforcement, audits."""
