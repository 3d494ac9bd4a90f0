"""The kernels of neighbour sampling, hop by hop, and how entries of a column are picked."""
