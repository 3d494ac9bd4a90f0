"""Batches on a GPU: sampled in groups, joined some at a time, on streams of their own. The same for all adapters."""
