"""Which items are in which batch, looked up by a GPU (triton)."""

from manyhop.pipeline._gpu.positions import GPUPositions

__all__ = ["GPUPositions"]
