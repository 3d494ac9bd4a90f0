"""Parts that all benchmarks share: graphs, timing, tables, plots and the description of the machine."""
