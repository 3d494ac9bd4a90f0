"""``benchmarks cpu``: sampling alone and whole loaders on the CPU."""
