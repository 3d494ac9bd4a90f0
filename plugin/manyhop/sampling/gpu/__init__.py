"""Neighbour sampling on GPUs, in triton. Importing this package imports triton."""
