"""One launch of neighbour or LABOR sampling: its memory, its kernels in their order, its results."""
