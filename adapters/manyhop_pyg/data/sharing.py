"""One copy of data per machine, for any number of ranks."""

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
    """Share one copy of the data per machine: ``data = manyhop_pyg.share(load)``.

    All ranks of the run call it, in the same order as their other calls.

    ``load()`` runs on one rank of each machine. Each rank, including this one, gets its own object, whose tensors and
    numpy arrays are views of the same memory. Loaders over it also share their compressed topology, even if only some
    ranks create them. A process that is alone on its machine gets the result of ``load()``. All ranks return when all
    machines have loaded.

    The object may contain anything that can be pickled. CPU tensors of any layout and subclass are shared; a view
    shares all of its memory (``clone()`` a small part of a large tensor). Memory-mapped tensors and arrays stay mapped.
    Writes to a tensor are visible to all ranks; an attribute that is set (``data.y = ...``) to one. Do not write to
    edges, times and weights: loaders may have tables of the old values. Keep data that differs by rank, such as a split
    of the seeds, outside of the object.

    The memory has no name in the file system and is freed when no process uses it, also after a crash. While it is
    filled, the copy of ``load()`` also exists.

    Args:
        load: function without arguments that returns the data and does not communicate with other ranks. Or the data:
            ``Data``, ``HeteroData``, a store, or ``(FeatureStore, GraphStore)``; ranks should then drop their own copy,
            as ``data = share(data)`` does.
        timeout: seconds to wait for another rank's ``load()``, on this machine, then on the others.
        placement: ``"shared"``: host memory, once per machine. Or another placement of the features of ``Data``,
            ``HeteroData`` and stores: dense tensors of two or more dimensions with one row per node or edge are moved
            to ``"pinned"`` or ``"device"`` memory or, with ``device="cuda"``, ``"sharded"`` over the GPUs of each
            machine. Tensors of a ``FeatureStore`` may also be ``"sharded"`` over machines (without a device) or
            ``"distributed"`` over the GPUs of all machines; for a ``GraphStore``, GPUs read the topology from the
            placement. All ranks call it. Other tensors are in host memory, once per machine.
        device: this rank's GPU, for placements of GPUs.

    Raises:
        RankError: ``load()`` failed, was killed or takes too long on another rank, or ranks make different calls.
        InputError: the data cannot be passed to other processes, or has tensors outside of the CPU.
        CapacityError: not enough memory.
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
    """Return the data with its features in a placement of GPUs."""
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
    """Return a store in a placement; all ranks call it."""
    if isinstance(store, FeatureStore):
        return store.moved(placement, device)
    if store_device(placement, device, None) is not None:
        store.topology_place = place_for_topology(placement)
    return store


def _has_rows(store: BaseStorage, name: str, value: Tensor) -> bool:
    """Return whether a tensor has one row per node or edge (``edge_index`` has two)."""
    if name in ("edge_index", "adj", "adj_t"):
        return False
    is_of_nodes = isinstance(store, NodeStorage) and store.is_node_attr(name)
    return is_of_nodes or (
        isinstance(store, EdgeStorage) and store.is_edge_attr(name) and len(value) == store.num_edges
    )


def _title(data: object) -> str:
    """Return facts that must be equal on all ranks: classes, and shapes if known."""
    return repr(data) if isinstance(data, BaseData) else " and ".join(type(part).__name__ for part in _parts(data))


def _parts(data: object) -> tuple[object, ...]:
    return data if isinstance(data, tuple) else (data,)
