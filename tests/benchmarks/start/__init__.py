"""``benchmarks start``: what a process takes until its first batch."""
