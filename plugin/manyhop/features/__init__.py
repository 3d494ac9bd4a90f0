"""Rows of features by global id: gathering, and the memory that it goes to.

``GPUExchange``, ``WholeMemory`` and ``share_graph`` load triton when they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from manyhop import _triton
from manyhop.features._buffers import BufferPool, PinnedPool
from manyhop.features._cached import CachedRows, HotRows
from manyhop.features._checks import Checks
from manyhop.features._distributed import DistributedRows
from manyhop.features._exchange import Exchange, Traffic
from manyhop.features._gather import Exchanging, RowRequest, gather
from manyhop.features._gpu_cache import GPUVisits, keep_hot
from manyhop.features._shards import ShardedRows, Shards
from manyhop.features._spread import node_memory, spread
from manyhop.memory.pinned import is_pinnable, is_pinned, pin, pinned_bytes, unpin

if TYPE_CHECKING:
    from manyhop.features._gpu.exchange import GPUExchange
    from manyhop.features._gpu.topology import share_graph
    from manyhop.features._gpu.wholegraph import WholeMemory

__all__ = [
    "BufferPool",
    "CachedRows",
    "Checks",
    "DistributedRows",
    "Exchange",
    "Exchanging",
    "GPUExchange",
    "GPUVisits",
    "HotRows",
    "PinnedPool",
    "RowRequest",
    "ShardedRows",
    "Shards",
    "Traffic",
    "WholeMemory",
    "gather",
    "is_pinnable",
    "is_pinned",
    "keep_hot",
    "node_memory",
    "pin",
    "pinned_bytes",
    "share_graph",
    "spread",
    "unpin",
]

_ON_GPU = {"GPUExchange": "exchange", "WholeMemory": "wholegraph", "share_graph": "topology"}


def __getattr__(name: str) -> Any:
    if name not in _ON_GPU:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _triton.require("Memory over several GPUs")
    return getattr(import_module(f"manyhop.features._gpu.{_ON_GPU[name]}"), name)
