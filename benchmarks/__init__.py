"""Proofs and benchmarks that need the real demo pair; each prints its conditions with its figures."""
