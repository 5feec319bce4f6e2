"""Certified history: certificates, chains, lineage, weights, waypoints, proofs."""
