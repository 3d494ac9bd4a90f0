"""``benchmarks ranks`` and ``benchmarks exchange``: several ranks on one machine."""
