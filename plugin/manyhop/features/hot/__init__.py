"""Caches of the rows that batches ask for most often."""
