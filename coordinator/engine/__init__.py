"""The one entrance to the protocol: fragments, fork choice, gossip, enforcement, audits."""
