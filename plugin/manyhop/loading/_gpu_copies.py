"""Copies of the user's tensors where GPUs read them: one for all loaders."""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop.features import pin
from manyhop.graph import CSC, Graph
from manyhop.loading._checksum import WHOLE_ONCE, checksum
from manyhop.placement import GPUPlace
from manyhop.sampling import HGTSpec, NeighborSpec

_PINNED_FROM = 32 << 20  # from this size on, the C library gives memory pages of its own


class Version:
    """A tensor or an array as it is now."""

    def __init__(self, value: Any) -> None:
        self._source = value
        self._version = value._version if isinstance(value, Tensor) else 0

    def is_current(self) -> bool:
        """Whether it has not been changed in place (of arrays, nobody knows)."""
        return not isinstance(self._source, Tensor) or self._source._version == self._version


class Copy(Version):
    """A tensor on a GPU, and what it is a copy of."""

    def __init__(self, value: Any, device: torch.device) -> None:
        super().__init__(value)
        self._checksum = checksum(value, whole=WHOLE_ONCE)
        self.there = as_tensor(value).to(device)

    @staticmethod
    def of(value: Any, device: torch.device) -> Copy:
        """The copy of a tensor on a device: an existing one, if there is one of the values that it has now."""
        key = id(value), device
        with _lock:
            copy = _copies.get(key)
            current = copy is not None and copy._source is value and copy.is_current()
            if copy is None or not current or copy._checksum != checksum(value, whole=WHOLE_ONCE):
                copy = _copies[key] = Copy(value, device)
            return copy

    @staticmethod
    def exists(value: Any, device: torch.device) -> bool:
        """Whether a loader of this process holds a copy on a device that is current."""
        with _lock:
            copy = _copies.get((id(value), device))
            return copy is not None and copy._source is value and copy.is_current()


_copies: weakref.WeakValueDictionary[Any, Copy] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def as_tensor(value: Any) -> Tensor:
    """A tensor or an array, without a gradient and without a copy."""
    if isinstance(value, Tensor):
        return value.detach()
    return torch.from_numpy(value if value.flags.writeable else np.array(value))


def is_movable(value: Any, device: torch.device, *, also_there: bool = False) -> bool:
    """Whether rows may be read from a copy elsewhere: dense tensors and arrays that the GPU does not hold yet.

    ``also_there``: those that it holds, too.
    """
    if type(value) is Tensor or type(value) is torch.nn.Parameter:
        elsewhere = value.device.type == "cpu" or (also_there and value.device == device)
        return elsewhere and value.layout is torch.strided and value.dim() > 0 and not value.requires_grad
    return isinstance(value, np.ndarray) and value.ndim > 0


def is_pinnable(value: Any) -> bool:
    """Whether memory is worth to be pinned in place. The pages of what is smaller may be shared with other objects,
    which CUDA then refuses to copy, as only a part of them is pinned.
    """
    return int(value.nbytes) >= _PINNED_FROM


class PlacedGraph:
    """A topology where kernels of a GPU read it, and the engines that sample it there.

    Args:
        graph: the topology.
        device: the GPU.
        where: on the GPU; in memory of the host, which is pinned in place (the column pointers are on the GPU all the
            same); or over the GPUs of the node: all ranks make it then.
        timeout: seconds to wait for them.
    """

    def __init__(self, graph: Graph, device: torch.device, where: GPUPlace, timeout: float) -> None:
        self._source = graph  # kept: what is placed is known by its id
        self.device = device
        self.graph, self._keep = place_graph(graph, device, where, timeout)
        self._engines: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()

    @staticmethod
    def of(graph: Graph, device: torch.device, where: GPUPlace, timeout: float) -> PlacedGraph:
        """The topology in its place: an existing one, if there is one."""
        if where == "sharded":  # ranks need not agree on who still has which
            return PlacedGraph(graph, device, where, timeout)
        key = id(graph), device, where
        with _lock:
            placed = _placed.get(key)
            if placed is None:
                placed = _placed[key] = PlacedGraph(graph, device, where, timeout)
            return placed

    @staticmethod
    def exists(graph: Graph, device: torch.device) -> bool:
        """Whether the topology lies on a GPU already."""
        with _lock:
            return (id(graph), device, "device") in _placed

    def engine(self, spec: NeighborSpec | HGTSpec) -> Any:
        """What samples as a spec says; all that sample so share its memory."""
        from manyhop.sampling import GPUHGTSampler, GPUSampler

        key = repr(spec)
        with _lock:
            engine = self._engines.get(key)
            if engine is None:
                make: Any = GPUHGTSampler if isinstance(spec, HGTSpec) else GPUSampler
                engine = self._engines[key] = make(self.graph, spec, device=self.device)
            return engine


_placed: weakref.WeakValueDictionary[Any, PlacedGraph] = weakref.WeakValueDictionary()


def place_graph(graph: Graph, device: torch.device, where: GPUPlace, timeout: float) -> tuple[Graph, Any]:
    """The topology where kernels of the GPU read it, and what has to be kept as long as it is used.

    On the GPU; in memory of the host, which is pinned in place, but for the column pointers; or over the GPUs of the
    node: all ranks call it.
    """
    if where == "sharded":
        from manyhop.features import share_graph

        return share_graph(graph, timeout=timeout)

    def moved(csc: CSC) -> CSC:
        there: dict[str, Any] = {"colptr": csc.colptr.to(device)}  # looked up before each read of the others
        for name in ("row", "perm", "time", "weight", "alias", "num_positive"):
            table = getattr(csc, name)
            if table is not None and where == "pinned" and is_pinnable(table):
                pin(table)
            elif table is not None:
                there[name] = table.to(device)
        return replace(csc, **there)

    return replace(graph, csc={t: moved(csc) for t, csc in graph.csc.items()}), None
