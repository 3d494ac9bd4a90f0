"""Loaders of PyG's names, and the four objects that they give the engine."""
