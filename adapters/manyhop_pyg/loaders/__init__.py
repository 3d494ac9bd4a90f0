"""Loaders with PyG's names, and the four objects that they pass to the engine."""
