"""``benchmarks step``: training steps and layers on a GPU."""
