"""Samplers of DGL's interface, and samples as tensors."""
