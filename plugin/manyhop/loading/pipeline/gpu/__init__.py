"""What a GPU does for batches, but for sampling and gathering (triton): looks up which items are in them, pads them."""

from manyhop.loading.pipeline.gpu.pad import GPUFrame, Jobs, clear, fill, prepare_padding
from manyhop.loading.pipeline.gpu.positions import GPUPositions

__all__ = ["GPUFrame", "GPUPositions", "Jobs", "clear", "fill", "prepare_padding"]
