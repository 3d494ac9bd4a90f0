"""Which engine samples by which spec, and where: one registry for the samplers and loaders of all adapters.

A new engine is an entry of ``_KINDS``, and a class for each backend.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from manyhop import sampling
from manyhop.errors import InputError
from manyhop.graph import Graph, PlacedGraph
from manyhop.sampling.check import check_spec
from manyhop.sampling.contract import (
    Engine,
    HGTSpec,
    LaborSpec,
    NeighborSpec,
    NodeRequest,
    Pending,
)
from manyhop.sampling.cpu.sampler import HostEngine
from manyhop.sampling.cpu.workspace import Empty, empty
from manyhop.system.arrays import known
from manyhop.system.threads import in_forked_children

Spec: TypeAlias = NeighborSpec | HGTSpec | LaborSpec
Backend: TypeAlias = Literal["reference", "cpu", "gpu"]
"""``reference``: numpy. ``cpu``: numba. ``gpu``: triton."""

# The engine of a spec and a backend is the class of these two names in :mod:`manyhop.sampling`.
_KINDS = {NeighborSpec: "Sampler", HGTSpec: "HGTSampler", LaborSpec: "LaborSampler"}
_BACKENDS = {"reference": "Reference", "cpu": "CPU", "gpu": "GPU"}


def engine_for(
    graph: Graph,
    spec: Spec,
    device: torch.device | str = "cpu",
    *,
    backend: Backend | None = None,
    empty: Empty = empty,
) -> Engine:
    """Return the engine that samples a graph by a spec.

    An engine for the CPU compiles nothing and allocates nothing before it is first used. It follows the tables of the
    graph: when one of them has moved in memory (sharing it with another process moves it, in place), the next sample is
    made from where they are then.

    Args:
        graph: the topology, where the device reads it.
        spec: how to sample; identical for all requests.
        device: where to sample.
        backend: which implementation; ``None``: ``cpu`` or ``gpu``, by the device.
        empty: makes the tensors of samples in CPU memory; pipelines pass recycled memory.

    Raises:
        InputError: the spec does not fit the graph, or there is no engine for it.
        GraphError: the device cannot read the graph, or the graph lacks data that the spec needs.
    """
    device = torch.device(device)
    if backend is None:
        backend = "cpu" if device.type == "cpu" else "gpu"
    kind = type(spec)
    if kind not in _KINDS or backend not in _BACKENDS:
        known = ", ".join(sorted(f"{kind.__name__} ({name})" for kind in _KINDS for name in _BACKENDS))
        raise InputError(f"Expected a spec and a backend among {known}, got {kind.__name__} ({backend}).")
    make: Any = getattr(sampling, _BACKENDS[backend] + _KINDS[kind])
    if backend == "gpu":
        engine: Engine = make(graph, spec, device=device)
        return engine
    check_spec(graph, spec)
    return HostEngine(graph, partial(make, graph, spec, **({"empty": empty} if backend == "cpu" else {})))


def placed_engine(placed: PlacedGraph, spec: Spec) -> Engine:
    """Return what samples a placed graph by a spec: one engine, with its memory, for all that sample so.

    Keep ``placed`` as long as the engine is used.

    Raises:
        InputError: the spec does not fit the graph, or there is no engine for it.
    """
    key = repr(spec)
    with _lock:
        engines = known(placed).engines
        engine: Engine | None = engines.get(key)
        if engine is None:
            engine = engines[key] = _engine_of(placed, spec)
        return engine


def _engine_of(placed: PlacedGraph, spec: Spec) -> Engine:
    if placed.where == "pinned":
        return PinnedEngine(placed, spec)
    if placed.where != "distributed":
        return engine_for(placed.graph, spec, placed.device, backend="gpu")
    if not isinstance(spec, NeighborSpec):
        raise InputError(
            f"Expected neighbour sampling with engine='cugraph', got {type(spec).__name__}. Leave engine out."
        )
    engine: Engine = collective_backend().make_sampler(placed.memory, spec)
    return engine


class CollectiveEngine(Engine, Protocol):
    """An engine whose calls all ranks make together."""

    request_size: int
    """The number of seeds that one request of this rank covers."""


def collective_backend() -> Any:
    """Return the module that samples a topology whose edges are spread over the GPUs of all ranks, imported once used.

    It has ``build_bytes(graph)``, the bytes that all GPUs together need to build the topology; ``spread(graph, device,
    timeout=)`` and ``drain(timeout=)``, which all ranks call to spread the edges and to help others until none has
    batches to sample; ``make_sampler(spread, spec)``, which returns a :class:`CollectiveEngine`.
    """
    return import_module("manyhop_cugraph")


def suits_cugraph(spec: Spec) -> bool:
    """Return whether cuGraph may sample by a spec without the user's request: whether it follows the contract."""
    return isinstance(spec, NeighborSpec) and spec.subgraph != "induced" and spec.temporal is None


class PinnedEngine(HostEngine):
    """An engine of a GPU over tables in pinned memory of the host, which are pinned again when they have moved.

    Args:
        placed: the topology.
        spec: how to sample.
    """

    def __init__(self, placed: PlacedGraph, spec: Spec) -> None:
        def make() -> Engine:
            placed.pin_again()
            return engine_for(placed.graph, spec, placed.device, backend="gpu")

        super().__init__(placed.graph, make)
        self.prepare()

    def _find_tables(self) -> list[Tensor]:
        return [table for table in self._graph.tables() if table.device.type == "cpu"]

    def begin(self, requests: Sequence[NodeRequest]) -> Pending:
        """Begin to sample multiple batches, on the current stream."""
        pending: Pending = self.prepare().begin(requests)
        return pending


_lock = threading.Lock()


def _renew_lock() -> None:
    """Replace a lock that a thread held which does not exist in a forked process."""
    global _lock
    _lock = threading.Lock()


in_forked_children(_renew_lock)
