"""``benchmarks disk``: rows of a file that is larger than memory."""
