"""The parts of a sampler's call, in the engine's terms: the user's fanouts, seeds, edges to leave out; its key."""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from manyhop import arguments, loading
from manyhop.arguments import integer
from manyhop.errors import InputError
from manyhop.graph import EdgeType, NodeType
from manyhop.loading import current_key
from manyhop.sampling import BatchKey
from manyhop.sampling.random import Use, make_key
from manyhop.system.arrays import has_memory
from manyhop_dgl.graph.topology import Topology, of_type, type_of
from manyhop_dgl.typing import EdgeName, Fanouts, LayerFanouts, Names, Nodes


def freeze_fanouts(fanouts: Fanouts) -> tuple[LayerFanouts, ...]:
    """Convert fanouts to a hashable value: per layer an integer, or ``((edge type, integer), ...)``.

    Raises:
        InputError: no list of integers and dicts of integers.
    """
    if isinstance(fanouts, str | bytes | Mapping) or not isinstance(fanouts, Iterable):
        raise InputError(f"Expected fanouts as a list with one entry per layer, such as [10, 5], got {fanouts!r}.")
    return tuple(
        tuple((_name(t), _fanout(k)) for t, k in layer.items()) if isinstance(layer, Mapping) else _fanout(layer)
        for layer in fanouts
    )


def read_fanouts(layers: tuple[LayerFanouts, ...], topology: Topology) -> dict[EdgeType, tuple[int, ...]]:
    """Return edge type of the topology -> neighbours per node, hop by hop: the last layer is the first hop.

    Raises:
        InputError: an edge type that the graph does not have, or one without a fanout.
    """
    per_hop = [fanouts_by_type(layer, topology.edge_types) for layer in reversed(layers)]
    return {ours: tuple(hop[theirs] for hop in per_hop) for theirs, ours in topology.edge_types.items()}


def fanouts_by_type(layer: LayerFanouts, edge_types: Iterable[EdgeType]) -> dict[EdgeType, int]:
    """Return the fanouts of one layer, by canonical edge type.

    Raises:
        InputError: an edge type that the graph does not have, or one without a fanout.
    """
    if isinstance(layer, int):
        return dict.fromkeys(edge_types, layer)
    given: dict[EdgeType, int] = by_type(dict(layer), edge_types, "edge", "fanouts")
    if missing := [t for t in edge_types if t not in given]:
        raise InputError(f"Expected a fanout for every edge type, got none for {missing[0]}. Pass 0 to sample none.")
    return given


def read_seeds(seeds: object, topology: Topology) -> tuple[Nodes, dict[NodeType, Tensor]]:
    """Seed nodes as they are returned (as given; tensors of the graph's ``idtype``), and as the engine takes them.

    Raises:
        InputError: an unknown node type, a tensor for a graph of multiple node types, no integers, another device.
    """
    given = by_type(seeds, topology.graph.num_nodes, "node", "seed nodes")
    if not given:
        raise InputError("Expected seed nodes of at least one node type, got an empty dict.")
    ids = {t: as_ids(some, f"seed nodes{of_type(t)}") for t, some in given.items()}
    output = {t: _as_given(some, ids[t], topology.index_dtype) for t, some in given.items()}
    return output if isinstance(seeds, Mapping) else next(iter(output.values())), ids


def read_exclude(edges: Any, topology: Topology) -> dict[EdgeType, Tensor] | None:
    """Return edges to leave out, ``[n] int64`` by edge type of the topology; ``None`` if there are none.

    Raises:
        InputError: an unknown edge type, a tensor for a graph of multiple edge types, no integers, another device.
    """
    if edges is None:
        return None
    given = by_type(edges, topology.edge_types, "edge", "edges to exclude")
    return {topology.edge_types[t]: as_ids(ids, f"edges{of_type(t)} to exclude") for t, ids in given.items()}


def by_type(given: object, types: Iterable[Any], kind: str, what: str, values: str = "ids") -> dict[Any, Any]:
    """Return node type, or canonical edge type -> values, which are those of the only type unless they are a dict.

    Raises:
        InputError: no dict for a graph with multiple types; an unknown or ambiguous type, or one that is given twice.
    """
    known = list(types)
    if not isinstance(given, Mapping):
        if len(known) == 1:
            return {known[0]: given}
        raise InputError(
            f"Expected {what} as a dict, {kind} type -> {values}, since the graph has several {kind} types: {known}, "
            f"got a {type(given).__name__}. Name the type, as in {{{known[0]!r}: ...}}."
        )
    found: dict[Any, Any] = {}
    for name, value in given.items():
        own = type_of(name, known, kind, what)
        if own in found:
            raise InputError(f"Expected each {kind} type once in {what}, got {own} twice.")
        found[own] = value
    return found


def as_ids(ids: object, what: str) -> Tensor:
    """Return ``[n] int64`` ids; the very tensor if it is one already.

    Raises:
        InputError: no integers, more than one dimension, not on the CPU.
    """
    if type(ids) is Tensor and ids.dtype == torch.int64 and ids.dim() == 1 and has_memory(ids) and not ids.is_neg():
        return ids  # the usual case, quickly
    return arguments.as_ids(what, ids).to(torch.int64)


def same_device(tensors: Iterable[Tensor], device: torch.device, what: str) -> None:
    """Raise InputError unless all tensors are in CPU memory or on the device."""
    for tensor in tensors:
        if tensor.device != device and tensor.device.type != "cpu":
            where = "the CPU" if device.type == "cpu" else f"the CPU or on {device}"
            raise InputError(f"Expected {what} on {where}, where sampling is done, got them on {tensor.device}.")


def check_sampler(sampler: object) -> None:
    """Raise InputError for what does not sample."""
    if isinstance(sampler, type):
        raise InputError(f"Expected a sampler, got the class {sampler.__name__}. Make one: {sampler.__name__}(...).")
    if not callable(getattr(sampler, "sample", None)):
        raise InputError(f"Expected a sampler with a method sample(graph, indices), got a {type(sampler).__name__}.")


def check_names(names: Names, what: str) -> None:
    """Raise InputError unless ``names`` is ``None``, a list of names, or a dict, type -> list of names."""
    lists = names.values() if isinstance(names, Mapping) else (names or [],)
    for one in lists:
        if isinstance(one, str) or not isinstance(one, Sequence) or not all(isinstance(name, str) for name in one):
            raise InputError(f"Expected {what} as a list of names, or a dict, type -> list of names, got {names!r}.")


def check_name(name: object, what: str) -> None:
    """Raise InputError unless ``name`` is ``None`` or a string."""
    if name is not None and not isinstance(name, str):
        raise InputError(
            f"Expected {what} as the name of edge data, got a {type(name).__name__}. Store the values in g.edata, and "
            "pass their name."
        )


def _as_given(given: object, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ids of a dtype: the very tensor that was given, if it is that."""
    return given if isinstance(given, Tensor) and given.dtype == dtype else ids.to(dtype)


def _name(edge_type: Any) -> EdgeName:
    return tuple(edge_type) if isinstance(edge_type, list) else edge_type


def _fanout(value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        fanout = operator.index(value)
    except TypeError:
        raise InputError(f"Expected fanouts as integers, got {value!r}.") from None
    if fanout < -1:
        raise InputError(f"Expected fanouts of 0 or more, or -1 for all neighbours, got {fanout}.")
    return fanout


_seeded: tuple[torch.Generator, int] | None = None  # and the process that seeded it


def seed(val: int) -> None:
    """Fix all draws of samplers and loaders that follow, also of existing ones.

    Loaders draw once per epoch, when it begins, and samplers that are used alone once per call. Before the first call,
    they draw from torch's default generator. Samplers and loaders with ``seed=`` do not draw.

    Args:
        val: any integer.
    """
    global _seeded
    _seeded = torch.Generator().manual_seed(int(val) & (1 << 64) - 1), os.getpid()


def draw() -> int:
    """Draw a seed.

    In a worker process of torch's ``DataLoader`` it comes from torch's generator, which has another seed in each worker
    and epoch, unless the worker itself called :func:`seed`: workers are copies, and would all draw the same.
    """
    if _seeded is None:
        return loading.draw_seed()
    own, process = _seeded
    is_copy = process != os.getpid() and torch.utils.data.get_worker_info() is not None
    return loading.draw_seed(None if is_copy else own)


def next_key() -> BatchKey:
    """Return the key of one call of a sampler: the current batch's, or a drawn one."""
    return loading.next_key(draw)


class Keys:
    """The keys of one sampler.

    Inside manyhop's loaders a call has the key of its batch. Elsewhere (DGL's own DataLoader, calls by hand) a call
    draws its key, so that ``dgl.seed`` and ``torch.manual_seed`` reproduce it; or, with a seed, keys are counted: the
    seed, and the number of the call. Worker processes and ranks derive their own seeds from it.

    Args:
        seed: ``None``: each call draws.

    Raises:
        InputError: a seed that is not an integer.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = None if seed is None else integer("seed", seed)
        self._calls = itertools.count()

    def next(self, *, counts: bool = False) -> BatchKey:
        """Return the key of one call.

        Args:
            counts: draw a seed in the first call only, and count the calls.
        """
        if current_key() is not None:
            return next_key()
        if self.seed is None and not counts:
            key, rank = next_key(), _rank()
            return key if rank == 0 else key._replace(seed=_seed(key.seed, rank, None))
        if self.seed is None:
            self.seed = draw()
        worker = torch.utils.data.get_worker_info()  # its seed changes in each epoch
        return BatchKey(_seed(self.seed, _rank(), None if worker is None else worker.seed), 0, next(self._calls))

    def __getstate__(self) -> dict[str, object]:
        calls = next(self._calls)
        self._calls = itertools.count(calls)
        return {"seed": self.seed, "calls": calls}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.seed = state["seed"]
        self._calls = itertools.count(state["calls"])


def _rank() -> int:
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


@lru_cache(maxsize=64)
def _seed(seed: int, rank: int, worker_seed: int | None) -> int:
    if rank > 0:
        seed = int(make_key(Use.RANK, seed, rank))
    return seed if worker_seed is None else int(make_key(Use.CALL, seed, worker_seed))
