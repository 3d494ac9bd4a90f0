"""Rows of features by global id: gathering, and the memory of the results.

``GPUExchange``, ``WholeMemory`` and ``share_graph`` load triton when they are first requested.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from manyhop.features.buffers import BufferPool, PinnedPool
from manyhop.features.cached_files import (
    VISITS_PER_ROW,
    CacheSize,
    FileCache,
    cache_files,
    check_cache,
    file_cache,
    only_counting,
)
from manyhop.features.exchange.host import Exchange
from manyhop.features.exchange.row_exchange import RowExchange, Traffic
from manyhop.features.exchange.spread import node_memory, spread
from manyhop.features.gathering import Exchanging, gather
from manyhop.features.requests import Checks, RowRequest
from manyhop.features.sources import CachedRows, DistributedRows, HotRows, ShardedRows, Shards
from manyhop.features.visits import Visits, keep_hot, keep_on_nodes, rows_wanted
from manyhop.memory.pinned import is_pinnable, is_pinned, pin, pinned_bytes, unpin
from manyhop.system import triton_compiler

if TYPE_CHECKING:
    from manyhop.features.exchange.gpu.exchange import GPUExchange
    from manyhop.features.whole_memory.memory import WholeMemory, share_graph

__all__ = [
    "VISITS_PER_ROW",
    "BufferPool",
    "CacheSize",
    "CachedRows",
    "Checks",
    "DistributedRows",
    "Exchange",
    "Exchanging",
    "FileCache",
    "GPUExchange",
    "HotRows",
    "PinnedPool",
    "RowExchange",
    "RowRequest",
    "ShardedRows",
    "Shards",
    "Traffic",
    "Visits",
    "WholeMemory",
    "cache_files",
    "check_cache",
    "file_cache",
    "gather",
    "is_pinnable",
    "is_pinned",
    "keep_hot",
    "keep_on_nodes",
    "node_memory",
    "only_counting",
    "pin",
    "pinned_bytes",
    "rows_wanted",
    "share_graph",
    "spread",
    "unpin",
]

_ON_GPU = {
    "GPUExchange": "exchange.gpu.exchange",
    "WholeMemory": "whole_memory.memory",
    "share_graph": "whole_memory.memory",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_GPU:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    triton_compiler.require("Memory over multiple GPUs")
    return getattr(import_module(f"manyhop.features.{_ON_GPU[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
