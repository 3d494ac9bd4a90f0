"""Topology where a GPU reads it: made once for all loaders of the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph.csc import CSC, Graph
from manyhop.memory.mapped_files import MappedFiles
from manyhop.memory.pinned import is_pinnable, pin
from manyhop.memory.places import Place
from manyhop.system.arrays import known, known_if_any
from manyhop.system.progress import to_device


class PlacedGraph:
    """A topology where kernels of a GPU read it.

    Args:
        source: the topology it is made of.
        graph: the placed topology.
        device: the GPU.
        where: the kind of memory.
        memory: objects that must live as long as the graph.
        number: number of memory that ranks share, the same on all of them.
    """

    def __init__(
        self, source: Graph, graph: Graph, device: torch.device, where: Place, memory: Any = None, number: int = 0
    ) -> None:
        self._source, self.memory, self.number = source, memory, number  # the source, as long as this object
        self.graph, self.device, self.where = graph, device, where

    @staticmethod
    def of(graph: Graph, device: torch.device, where: Place) -> PlacedGraph:
        """Return the topology in its place, one object for all loaders of the process that use it.

        Args:
            graph: the topology, in CPU memory.
            device: the GPU.
            where: ``device``: in memory of the GPU. ``pinned``: in memory of the host, pinned in place, but for column
                pointers and small tables, which are on the GPU; of files, the pages that the system keeps, which all
                processes share. ``sharded``: over the GPUs of the node, where all ranks
                have put it; ``distributed``: the same of the run, in cuGraph (``manyhop.memory.stores.spread``).

        Raises:
            CapacityError: the system does not let this process pin as much memory.
            InputError: the topology is not spread over GPUs.
        """
        with _lock:
            placed = PlacedGraph.find(graph, device, where)
            if placed is None and where in ("sharded", "distributed"):
                how = "placement='sharded'" if where == "sharded" else "engine='cugraph'"
                raise InputError(
                    f"Expected a topology that is spread over GPUs, got one that is not. Create a loader with {how} "
                    "first, on all ranks."
                )
            if placed is None:
                placed = PlacedGraph(graph, place_graph(graph, device, where), device, where).keep()
            return placed

    def keep(self) -> PlacedGraph:
        """Register it for :meth:`find` as long as it is used."""
        known(self._source).copies[self.device, self.where] = self
        return self

    @staticmethod
    def find(graph: Graph, device: torch.device, where: Place) -> PlacedGraph | None:
        """Return the topology in a place, if this process uses it there."""
        record = known_if_any(graph)
        return None if record is None else record.copies.get((device, where))

    def pin_again(self) -> None:
        """Pin tables that have moved in memory since they were pinned; sharing them with a process moves them."""
        for table in self.graph.tables():
            if table.device.type == "cpu" and is_pinnable(table):
                pin(table)


@contextmanager
def grouped_on(graph: Graph | None, device: torch.device | None) -> Iterator[None]:
    """Group edges on a GPU in the body: facts about them need no tables on the host.

    Args:
        graph: the topology; ``None``: that of another sampler.
        device: the GPU, or ``None``.
    """
    held = None
    if graph is not None and device is not None and not graph.is_made and not graph.is_part:
        held = PlacedGraph.of(graph, device, "device")
    yield
    del held


_lock = threading.Lock()


def place_graph(graph: Graph, device: torch.device, where: Place) -> Graph:
    """Return the topology where kernels of the GPU read it; see :meth:`PlacedGraph.of`."""
    if where != "pinned":
        return replace(graph, csc={edge_type: csc.on(device) for edge_type, csc in graph.csc.items()})
    files = MappedFiles()

    def pinned(table: Tensor) -> Tensor:
        if not is_pinnable(table):
            return to_device(table, device, "edges")
        there = files.pages_of(table)
        pin(there)
        return there

    def placed(csc: CSC) -> CSC:
        tables: dict[str, Any] = {name: pinned(table) for name, table in csc.tables().items() if name != "colptr"}
        return replace(csc.made(), colptr=csc.colptr.to(device), **tables)  # each read of another table reads colptr

    return replace(graph, csc={edge_type: placed(csc) for edge_type, csc in graph.csc.items()})


def place(graph: Graph, device: torch.device | str) -> Graph:
    """Return a copy of a graph, times of nodes included, in memory of a device; what is there is not copied.

    :class:`PlacedGraph` places a graph once for all loaders.
    """
    device = torch.device(device)
    node_time = {node_type: to_device(time, device, "times") for node_type, time in graph.node_time.items()}
    return replace(place_graph(graph, device, "device"), node_time=node_time)
