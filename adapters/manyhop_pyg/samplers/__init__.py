"""Samplers of PyG's interface."""
