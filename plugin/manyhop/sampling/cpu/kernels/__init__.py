"""Kernels of the CPU backend. Importing a module of this package imports numba."""
