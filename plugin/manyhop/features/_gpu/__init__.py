"""Rows of features on GPUs: memories, gather kernels, caches. Importing this package imports triton."""
