"""``manyhop bench cluster``: many ranks, simulated."""
