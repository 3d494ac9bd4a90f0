"""Topology where a GPU reads it: made once for all loaders of the process."""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace
from typing import Any

import torch

from manyhop.graph._graph import CSC, Graph
from manyhop.memory.pinned import is_pinnable, pin
from manyhop.placement import GPUPlace


class PlacedGraph:
    """A topology where kernels of a GPU read it.

    Args:
        source: the topology it is made of.
        graph: the same, in its place.
        device: the GPU.
        where: the kind of memory.
        memory: what has to be kept as long as the graph is used.
    """

    def __init__(
        self, source: Graph, graph: Graph, device: torch.device, where: GPUPlace, memory: object = None
    ) -> None:
        self._source, self._memory = source, memory  # the source is kept: a placed graph is found by its id
        self.graph, self.device, self.where = graph, device, where

    @staticmethod
    def of(graph: Graph, device: torch.device, where: GPUPlace) -> PlacedGraph:
        """Return the topology in its place, one object for all loaders of the process that use it.

        Args:
            graph: the topology, in CPU memory.
            device: the GPU.
            where: ``device``: in memory of the GPU. ``pinned``: in memory of the host, pinned in place, but for column
                pointers and small tables, which are on the GPU.

        Raises:
            CapacityError: the system does not let this process pin as much memory.
        """
        key = id(graph), device, where
        with _lock:
            placed = _placed.get(key)
            if placed is None:
                placed = _placed[key] = PlacedGraph(graph, place_graph(graph, device, where), device, where)
            return placed

    @staticmethod
    def exists(graph: Graph, device: torch.device) -> bool:
        """Return whether the topology is in memory of a GPU already."""
        with _lock:
            return (id(graph), device, "device") in _placed

    def pin_again(self) -> None:
        """Pin tables that have moved in memory since they were pinned; sharing them with a process moves them."""
        for table in self.graph.tables():
            if table.device.type == "cpu" and is_pinnable(table):
                pin(table)


_placed: weakref.WeakValueDictionary[tuple[int, torch.device, GPUPlace], PlacedGraph] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def place_graph(graph: Graph, device: torch.device, where: GPUPlace) -> Graph:
    """Return the topology where kernels of the GPU read it; see :meth:`PlacedGraph.of`."""

    def moved(csc: CSC) -> CSC:
        there: dict[str, Any] = {}
        for name, table in csc.tables().items():
            # Column pointers are looked up before each read of another table.
            if where == "pinned" and name != "colptr" and is_pinnable(table):
                pin(table)
            else:
                there[name] = table.to(device)
        return replace(csc, **there)

    return replace(graph, csc={t: moved(csc) for t, csc in graph.csc.items()})
