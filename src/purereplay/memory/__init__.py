"""Memories of a learner: delayed buffer D, purified buffer P and replay memories, preallocated and vectorised."""
