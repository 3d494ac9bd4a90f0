"""Samples and rows, as batches of PyG's classes."""
