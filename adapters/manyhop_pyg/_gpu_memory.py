"""Where the GPU of a loader reads topology and features: decided when the loader is made, kept up to date."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from manyhop import _cuda
from manyhop.features import pin
from manyhop.graph import CSC, Graph
from manyhop.placement import GPUMode, GPUPlace, GPUPlacement, Item, decide_gpu
from manyhop_pyg._engine import tables
from manyhop_pyg._feature_store import FeatureStore
from manyhop_pyg._plan import DataPlan


class GPUMemory:
    """The memories of one loader.

    A tensor or array in CPU memory whose place is the GPU is copied there once for all loaders of the process; a copy
    is renewed when the tensor has been changed in place (arrays have to be replaced to be noticed).

    Args:
        device: the GPU.
        placement: where topology and features go, the latter by name.
    """

    def __init__(self, device: torch.device, placement: GPUPlacement) -> None:
        self.device, self.placement = device, placement
        self._places = {choice.item.name: choice.place for choice in placement.features}
        self._copies: dict[Any, _Copy] = {}

    @property
    def topology(self) -> GPUPlace:
        """The place of the tables that the sampler reads."""
        return self.placement.topology.place

    def placed(self, name: str, value: Any) -> Any:
        """What the rows of an attribute are read from."""
        if not is_movable(value, self.device):
            return value
        place = self._places.get(name, self._worst())
        if place == "pinned":
            pin(value)
        if place != "device":
            return value
        copy = _Copy.of(value, self.device)
        self._copies[name] = copy  # kept as long as this loader wants it
        return copy.there

    def is_current(self) -> bool:
        """Whether no tensor that has a copy has been changed."""
        return all(copy.is_current() for copy in self._copies.values())

    def _worst(self) -> GPUPlace:
        """For attributes that came later: where the largest of the others is, as far as there is one."""
        largest = max(self.placement.features, key=lambda choice: choice.item.nbytes, default=self.placement.topology)
        return largest.place


class _Copy:
    """A tensor on the GPU, and what it is a copy of."""

    def __init__(self, value: Any, device: torch.device) -> None:
        self._source = value
        self._version = value._version if isinstance(value, Tensor) else 0
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.asarray(value))
        self.there = tensor.detach().to(device)

    @classmethod
    def of(cls, value: Any, device: torch.device) -> _Copy:
        """The copy of a tensor on a device: an existing one, if there is one that is current."""
        key = id(value), device
        with _lock:
            copy = _copies.get(key)
            if copy is None or copy._source is not value or not copy.is_current():
                copy = _copies[key] = cls(value, device)
            return copy

    def is_current(self) -> bool:
        """Whether the source has not been changed in place."""
        return not isinstance(self._source, Tensor) or self._source._version == self._version


_copies: weakref.WeakValueDictionary[Any, _Copy] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def decide_memory(
    data: Any, graph: Graph | None, device: torch.device, mode: GPUMode | None, *, together: bool, timeout: float
) -> GPUMemory:
    """Where a loader's topology and features go. Where it is made by all ranks ``together``, all of them call this.

    Args:
        data: the user's data.
        graph: what a sampler of ours reads; ``None``: another sampler's, which stays where it is.
        device: this rank's GPU.
        mode: the user's ``placement``.
        together: whether all ranks decide together.
        timeout: seconds to wait for them.

    Raises:
        CapacityError: it does not fit as the user wants.
        InputError: a mode that this machine, or this data, cannot have.
    """
    items = [_item(name, value) for name, value in _attributes(data) if is_movable(value, device)]
    nbytes = 0 if graph is None else sum(t.nbytes for t in tables(graph) if not t.is_cuda)
    topology = Item(name="topology", nbytes=nbytes, can_map=False, can_shard=False, in_memory=True)
    hardware = _cuda.hardware(device, together=together, timeout=timeout)
    placement = decide_gpu(topology, items, hardware, mode=mode or "auto")
    return GPUMemory(device, placement)


def is_movable(value: Any, device: torch.device) -> bool:
    """Whether rows may be read from a copy elsewhere: dense tensors and arrays that the GPU does not hold yet."""
    if type(value) is Tensor or type(value) is torch.nn.Parameter:
        return (
            value.layout is torch.strided
            and value.device.type == "cpu"
            and device.type == "cuda"
            and (not value.requires_grad and value.dim() > 0)
        )
    return isinstance(value, np.ndarray) and value.ndim > 0


def _attributes(data: Any) -> Sequence[tuple[str, Any]]:
    """Name and value of everything that has a row per node or edge."""
    found: list[tuple[str, Any]] = []
    if isinstance(data, Data | HeteroData):

        def note(name: str, value: Any) -> Any:
            found.append((name, value))
            return value

        DataPlan(data, None, note)
    elif isinstance(data[0], FeatureStore):
        found = data[0].named_tensors()
    return found


def _item(name: str, value: Any) -> Item:
    nbytes = int(value.nbytes)
    return Item(name=name, nbytes=nbytes, can_map=isinstance(value, np.memmap), in_memory=True, can_shard=False)


def place_graph(graph: Graph, device: torch.device, where: GPUPlace) -> Graph:
    """The topology where kernels of the GPU read it: on the GPU, or in memory of the host, which is pinned in place."""
    if where == "pinned":
        for table in tables(graph):
            pin(table)
        return graph

    def moved(table: Tensor | None) -> Tensor | None:
        return None if table is None else table.to(device)

    names = ("perm", "time", "weight", "alias", "num_positive")
    csc = {
        t: CSC(
            num_src=c.num_src,
            colptr=c.colptr.to(device),
            row=c.row.to(device),
            **{name: moved(getattr(c, name)) for name in names},
        )
        for t, c in graph.csc.items()
    }
    return Graph(num_nodes=graph.num_nodes, csc=csc, node_time=graph.node_time)
