"""Which engine samples by which spec, and where: one registry for the samplers and loaders of all adapters.

A new engine is an entry of ``_KINDS``, and a class for each backend.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from manyhop import sampling
from manyhop.errors import InputError
from manyhop.graph import Graph, PlacedGraph
from manyhop.memory.known import known
from manyhop.sampling.check import check_spec
from manyhop.sampling.contract import (
    Engine,
    HGTSpec,
    LaborSpec,
    NeighborSpec,
    NodeRequest,
    Pending,
    SampledSubgraph,
    Sampler,
)
from manyhop.sampling.cpu.workspace import Empty, describe_edges, empty
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
        engine = engines.get(key)
        if engine is None:
            if placed.where == "pinned":
                engine = PinnedEngine(placed, spec)
            elif placed.where == "distributed":
                engine = _with_cugraph(placed, spec)
            else:
                engine = engine_for(placed.graph, spec, placed.device, backend="gpu")
            engines[key] = engine
        return engine


class CollectiveEngine(Engine, Protocol):
    """An engine whose calls all ranks make together."""

    request_size: int
    """The number of seeds that one request of this rank covers."""


class CollectiveBackend(Protocol):
    """A module that samples a topology whose edges are spread over the GPUs of all ranks."""

    def spread(self, graph: Graph, device: torch.device, *, timeout: float) -> Any:
        """Spread the edges of a graph. All ranks call it."""

    def build_bytes(self, graph: Graph) -> int:
        """Return the bytes that all GPUs together need while the topology is built."""

    def make_sampler(self, spread: Any, spec: NeighborSpec) -> CollectiveEngine:
        """Return an engine over spread edges."""

    def drain(self, *, timeout: float) -> None:
        """Help other ranks until none has batches to sample. All ranks call it."""


def collective_backend() -> CollectiveBackend:
    """Return the backend, which is imported when it is first used."""
    return cast(CollectiveBackend, import_module("manyhop_cugraph"))


def suits_cugraph(spec: Spec) -> bool:
    """Return whether cuGraph may sample by a spec without the user's request: whether it follows the contract."""
    return isinstance(spec, NeighborSpec) and spec.subgraph != "induced" and spec.temporal is None


def _with_cugraph(placed: PlacedGraph, spec: Spec) -> Engine:
    """Return the engine of a topology that is spread over the GPUs of all ranks."""
    if not isinstance(spec, NeighborSpec):
        raise InputError(
            f"Expected neighbour sampling with engine='cugraph', got {type(spec).__name__}. Leave engine out."
        )
    return collective_backend().make_sampler(placed.memory, spec)


_S = TypeVar("_S", bound=Sampler)


class _Following(Generic[_S]):
    """A sampler over tables in CPU memory, built when it is first needed and again when they have moved.

    Samplers hold the addresses of tables.
    """

    collective = False

    def __init__(self, tables: list[Tensor] | None, make: Callable[[], _S]) -> None:
        self._tables, self._make = tables, make
        self._made: tuple[list[int], _S] | None = None  # in one piece: other threads read it

    def _current(self) -> _S:
        if self._tables is None:
            self._tables = self._find_tables()
        addresses = [t.data_ptr() for t in self._tables]
        made = self._made
        if made is None or made[0] != addresses:
            with _making:
                made = self._made
                if made is None or made[0] != addresses:
                    made = self._made = addresses, self._make()
        return made[1]

    def _find_tables(self) -> list[Tensor]:
        raise NotImplementedError

    def prepare(self) -> None:
        """Make the sampler for the tables where they are now: load or compile kernels, allocate memory."""
        self._current()

    def sample(self, request: NodeRequest) -> SampledSubgraph:
        """Sample around ``request.seeds``."""
        return self._current().sample(request)


class HostEngine(_Following[Sampler]):
    """An engine that samples on the CPU, one batch after the other.

    Args:
        graph: the topology, in CPU memory.
        make: builds the sampler.

    Raises:
        GraphError: the graph is not in CPU memory, or not laid out as in :class:`manyhop.graph.CSC`.
    """

    def __init__(self, graph: Graph, make: Callable[[], Sampler]) -> None:
        self._graph = graph
        super().__init__(self._find_tables() if graph.is_made else None, make)

    def _find_tables(self) -> list[Tensor]:
        describe_edges(self._graph)
        return self._graph.tables()

    def begin(self, requests: Sequence[NodeRequest]) -> Pending:
        """Store the batches; they are sampled when they are requested."""
        return _Deferred(self, requests)


class _Deferred:
    """Batches that are sampled when they are requested."""

    def __init__(self, engine: HostEngine, requests: Sequence[NodeRequest]) -> None:
        self._engine, self._requests = engine, requests

    def finish(self) -> list[SampledSubgraph]:
        return [self._engine.sample(request) for request in self._requests]


class PinnedEngine(_Following[Engine]):
    """An engine of a GPU over tables in pinned memory of the host, which are pinned again when they have moved.

    Args:
        placed: the topology.
        spec: how to sample.
    """

    def __init__(self, placed: PlacedGraph, spec: Spec) -> None:
        def make() -> Engine:
            placed.pin_again()
            return engine_for(placed.graph, spec, placed.device, backend="gpu")

        on_host = [table for table in placed.graph.tables() if table.device.type == "cpu"]
        super().__init__(on_host, make)
        self.prepare()

    def begin(self, requests: Sequence[NodeRequest]) -> Pending:
        """Begin to sample multiple batches, on the current stream."""
        return self._current().begin(requests)


_lock = threading.Lock()
_making = threading.Lock()


def _renew_locks() -> None:
    """Replace locks that a thread held which does not exist in a forked process."""
    global _lock, _making
    _lock, _making = threading.Lock(), threading.Lock()


in_forked_children(_renew_locks)
