"""Facts about the batches of a loader as plain values, compared by ranks and with saved states."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np
from torch import Tensor

from manyhop.features import DistributedRows, ShardedRows
from manyhop.graph import Graph
from manyhop.memory.stores.copies import checksum, checksum_of_values
from manyhop.system.arrays import has_memory

_MOST = 400  # characters of one fact in a state


def graph_facts(graph: Graph) -> dict[str, Any]:
    """Return the tensors and numbers of a topology that determine samples, by name, for :func:`plain` and
    :func:`brief`.

    Times precede edges, which are sorted by them.
    """
    sizes = {"number of nodes": graph.num_nodes, "number of edges": {t: csc.num_edges for t, csc in graph.csc.items()}}
    if graph.is_part:  # each rank has different edges
        return sizes
    found = {t: csc.anywhere() for t, csc in graph.csc.items()}
    tables: dict[str, Any] = {
        "times": {t: csc.time for t, csc in graph.csc.items()} | dict(graph.node_time),
        "weights": {t: csc.weight for t, csc in graph.csc.items()},
        "edges": {t: [csc.colptr, csc.row] for t, csc in found.items()},
    }
    return sizes | tables


def brief(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts for a state: checksums instead of tensors and long values."""
    found = {}
    for name, value in facts.items():
        value = plain(value, lambda t: f"{list(t.shape)}, checksum {checksum_of_values(t):08x}")
        text = json.dumps(value)
        found[name] = value if len(text) <= _MOST else f"checksum {zlib.crc32(text.encode()):08x}"
    return found


def _exact(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}, checksum {checksum(tensor):08x}"


def rows_fact(value: Any) -> Any:
    """Return the plain value of a source of rows; of rows spread over nodes, only dtype and shape."""
    if isinstance(value, ShardedRows | DistributedRows):
        whole = value.is_whole
        return _exact(value.rows) if whole else f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return f"{value.dtype} {list(value.shape)}, checksum {checksum(value):08x}"
    if isinstance(value, Tensor) and not has_memory(value):
        return f"{value.dtype} {list(value.shape)} as {value.layout} on {value.device.type}"
    return plain(value)


def plain(value: Any, of_tensor: Callable[[Tensor], Any] = _exact) -> Any:
    """Return a value for JSON: tensors by dtype, shape and checksum, unknown objects by their class."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Enum):
        return plain(value.value, of_tensor)
    if isinstance(value, Tensor):
        return of_tensor(value)
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name), of_tensor) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v, of_tensor) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v, of_tensor) for v in value]
    return f"a {type(value).__name__}"
