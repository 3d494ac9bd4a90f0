"""The loader: runs a chain of stages ahead of the caller."""
