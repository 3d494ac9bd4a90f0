"""Rows of features by global id: gathering, and the memory that it goes to."""

from manyhop.features._buffers import BufferPool
from manyhop.features._exchange import Exchange, Traffic
from manyhop.features._gather import Exchanging, RowRequest, gather
from manyhop.features._shards import ShardedRows, Shards
from manyhop.features._spread import node_memory, spread

__all__ = [
    "BufferPool",
    "Exchange",
    "Exchanging",
    "RowRequest",
    "ShardedRows",
    "Shards",
    "Traffic",
    "gather",
    "node_memory",
    "spread",
]
