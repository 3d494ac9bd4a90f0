"""The CPU backend. Importing this package does not import numba."""
