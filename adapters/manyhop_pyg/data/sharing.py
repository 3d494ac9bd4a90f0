"""Data once per node, whatever the number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch
import torch_geometric.data
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import BaseData
from torch_geometric.data.storage import BaseStorage, EdgeStorage, NodeStorage

from manyhop.errors import InputError
from manyhop.memory import sharing
from manyhop.memory.places import Place
from manyhop.memory.stores import leaves_host, place_for_topology, rows_in, store_device
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop_pyg.data.feature_store import FeatureStore
from manyhop_pyg.data.graph_store import GraphStore

T = TypeVar("T")

_KINDS = (BaseData, torch_geometric.data.FeatureStore, torch_geometric.data.GraphStore)


def share(
    load: Callable[[], T] | T,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    placement: Place = "shared",
    device: torch.device | str | None = None,
) -> T:
    """Keep one copy of the data per node: ``data = manyhop_pyg.share(load)``.

    Every rank of the run calls it, in the same order as its other calls.

    ``load()`` runs on one rank of each node. Every rank, also that one, gets an object of its own, whose tensors and
    numpy arrays are views of the same memory. Loaders over it share their compressed topology as well, whenever and on
    however few ranks they are made. A single process, or one that is alone on its node, gets what ``load()`` returns.
    Nodes may load at different speed: all ranks return when all nodes are done.

    The object may hold whatever can be pickled. Tensors of any layout and subclass are shared, on the CPU; a view
    brings all of the memory that it is a view of (``clone()`` a small part of something large). Tensors and arrays that
    are memory-mapped files stay mapped files. What is written into a tensor is seen by all ranks, what is set on the
    object (``data.y = ...``) by one. Do not write into edges, times and weights: loaders may have tables of what they
    were before. What differs from rank to rank, such as a split of the seeds, does not belong into the object.

    The memory has no name in the file system and is free once no process uses it any more, also after a crash. While
    it is filled, ``load()``'s own copy exists, too.

    Args:
        load: takes nothing and returns the data; must not communicate with other ranks. Or the data: ``Data``,
            ``HeteroData``, a store, or a tuple ``(FeatureStore, GraphStore)``; then ranks that loaded it in vain
            should drop it, as ``data = share(data)`` does.
        timeout: seconds to wait for another rank's ``load()``: on this node, then on the others.
        placement: ``"shared"``: host memory, once per node. Or another place for the features of ``Data``,
            ``HeteroData`` and stores, for all loaders: dense tensors of two or more dimensions with a row for each node
            or edge go to ``"pinned"`` or ``"device"`` memory or, with ``device="cuda"``, are ``"sharded"`` over the
            GPUs of each node. Those of a ``FeatureStore`` may be ``"sharded"`` over the nodes (without a device) or
            ``"distributed"`` over the GPUs of all nodes, too; of a ``GraphStore``, the place is where GPUs read the
            topology. All ranks of the run call it. Other tensors are in host memory, once per node.
        device: this rank's GPU, for places of GPUs.

    Raises:
        RankError: ``load()`` failed or was killed on another rank, or takes too long there; the ranks make different
            calls.
        InputError: the data cannot be passed to other processes, or has tensors that are not on the CPU.
        CapacityError: there is not enough memory.
    """
    if isinstance(load, _KINDS) or (isinstance(load, tuple) and all(isinstance(part, _KINDS) for part in load)):
        data = cast(T, load)
        return _placed(sharing.share(lambda: data, what=_title(data), timeout=timeout), placement, device)
    if not callable(load):
        raise InputError(
            f"Expected a function that loads the data, Data, HeteroData or (FeatureStore, GraphStore), got "
            f"{type(load).__name__}. Pass a function: share(lambda: dataset[0])."
        )
    return _placed(sharing.share(load, timeout=timeout), placement, device)


def _placed(data: T, placement: Place, device: torch.device | str | None) -> T:
    """The same, with its features in a place of GPUs."""
    if not leaves_host(placement, device):
        return data
    stores = [part for part in _parts(data) if isinstance(part, FeatureStore | GraphStore)]
    if len(stores) == len(_parts(data)):
        moved = [_store_in(store, placement, device) for store in stores]
        return cast(T, tuple(moved) if isinstance(data, tuple) else moved[0])
    gpu = store_device(placement, device, None)
    if gpu is None or placement == "distributed" or not isinstance(data, Data | HeteroData):
        raise InputError(
            f"Expected a FeatureStore or GraphStore of this package, or a tuple of both, for placement={placement!r} "
            f"with device={device!r}, got {type(data).__name__}. Data and HeteroData hold 'pinned', 'device' and, with "
            "device='cuda', 'sharded' features."
        )
    rows = rows_in(placement, gpu, None)
    assert rows is not None
    for store in data.stores:
        for name, value in list(store.items()):
            if type(value) is Tensor and value.dim() > 1 and _has_rows(store, name, value):
                store[name] = rows.put(value, None, name)
    return data


def _store_in(store: FeatureStore | GraphStore, placement: Place, device: torch.device | str | None) -> object:
    """Return a store in a place; all ranks call it."""
    if isinstance(store, FeatureStore):
        return store.moved(placement, device)
    if store_device(placement, device, None) is not None:
        store.topology_place = place_for_topology(placement)
    return store


def _has_rows(store: BaseStorage, name: str, value: Tensor) -> bool:
    """Whether a tensor has a row for each node or edge: ``edge_index`` has two."""
    if name in ("edge_index", "adj", "adj_t"):
        return False
    is_of_nodes = isinstance(store, NodeStorage) and store.is_node_attr(name)
    return is_of_nodes or (
        isinstance(store, EdgeStorage) and store.is_edge_attr(name) and len(value) == store.num_edges
    )


def _title(data: object) -> str:
    """What should be the same on all ranks: kinds, and shapes where they are known."""
    return repr(data) if isinstance(data, BaseData) else " and ".join(type(part).__name__ for part in _parts(data))


def _parts(data: object) -> tuple[object, ...]:
    return data if isinstance(data, tuple) else (data,)
