"""Self-Purified Replay, and later its rivals; each file reads like its paper's algorithm."""
