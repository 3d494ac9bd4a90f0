"""Lookup of seeds and padding of batches on a GPU (triton)."""

from manyhop.loading.pipeline.gpu.pad import GPUFrame, Jobs, clear, fill, prepare_padding
from manyhop.loading.pipeline.gpu.positions import GPUPositions

__all__ = ["GPUFrame", "GPUPositions", "Jobs", "clear", "fill", "prepare_padding"]
