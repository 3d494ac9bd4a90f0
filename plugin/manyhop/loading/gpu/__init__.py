"""Batches on a GPU for all adapters: sampled in groups, gathered some at a time, on separate streams."""
