"""Kernels of the GPU. Importing a module of this package imports triton."""
