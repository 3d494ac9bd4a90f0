"""Aggregation of messages over the edges of a batch: by segments of sorted edges, without atomics.

The kernels read the rows of sources and write one row per destination, without a tensor of ``[num_edges,
num_channels]``. Results and gradients are deterministic.
"""

from manyhop_train.aggregation.dispatch import add_ends, aggregate, normalize
from manyhop_train.aggregation.edges import Edges, Order, Reduction

__all__ = [
    "Edges",
    "Order",
    "Reduction",
    "add_ends",
    "aggregate",
    "normalize",
]
