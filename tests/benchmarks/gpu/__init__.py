"""``benchmarks gpu``: sampling, gathering, loading and training on NVIDIA GPUs."""
