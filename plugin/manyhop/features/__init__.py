"""Rows of features by global id: gathering, and the memory that it goes to."""

from manyhop.features._buffers import BufferPool
from manyhop.features._cached import CachedRows, HotRows
from manyhop.features._checks import Checks
from manyhop.features._exchange import Exchange, Traffic
from manyhop.features._gather import Exchanging, RowRequest, gather
from manyhop.features._gpu_cache import GPUVisits, keep_hot
from manyhop.features._pinned import PinnedPool, is_pinned, pin, pinned_bytes, unpin
from manyhop.features._shards import ShardedRows, Shards
from manyhop.features._spread import node_memory, spread

__all__ = [
    "BufferPool",
    "CachedRows",
    "Checks",
    "Exchange",
    "Exchanging",
    "GPUVisits",
    "HotRows",
    "PinnedPool",
    "RowRequest",
    "ShardedRows",
    "Shards",
    "Traffic",
    "gather",
    "is_pinned",
    "keep_hot",
    "node_memory",
    "pin",
    "pinned_bytes",
    "spread",
    "unpin",
]
