"""Rows of features on GPUs: memories, gather kernels, caches. Importing this package imports triton."""

from manyhop.features._gpu.gather import gather_on_gpu

__all__ = ["gather_on_gpu"]
