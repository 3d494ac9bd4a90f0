"""Batches of seed edges: negatives, edges to leave out, pair graphs."""
