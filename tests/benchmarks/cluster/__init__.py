"""``benchmarks cluster``: many ranks, simulated."""
