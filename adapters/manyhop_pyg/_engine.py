"""Which of the engine's samplers serves a spec on the CPU, and when it is made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch import Tensor

from manyhop._fork import in_forked_children
from manyhop.features import BufferPool
from manyhop.graph import Graph
from manyhop.sampling import CPUSampler, HGTSpec, NeighborSpec, NodeRequest, SampledSubgraph, Sampler
from manyhop.sampling._check import check_hgt_spec, check_spec
from manyhop.sampling._cpu_hgt_sampler import CPUHGTSampler
from manyhop.sampling._cpu_output import describe_edges


def neighbor_engine(graph: Graph, spec: NeighborSpec) -> CPUEngine:
    """A sampler of neighbours on the CPU, whose results lie in recycled memory."""
    check_spec(graph, spec)
    empty = BufferPool().empty
    return CPUEngine(graph, lambda: CPUSampler(graph, spec, empty=empty))


def hgt_engine(graph: Graph, spec: HGTSpec) -> CPUEngine:
    """The same for sampling of the Heterogeneous Graph Transformer's kind."""
    check_hgt_spec(graph, spec)
    empty = BufferPool().empty
    return CPUEngine(graph, lambda: CPUHGTSampler(graph, spec, empty=empty))


class CPUEngine:
    """A sampler that is made when it is first needed: where a GPU samples, its kernels are never compiled.

    It is made anew when the graph's tables have moved in memory. They move when they are shared with another process,
    in place: when a loader is passed to a spawned process, or the data whose memory they use. Samplers know addresses.

    Raises:
        GraphError: the graph does not lie in CPU memory.
    """

    def __init__(self, graph: Graph, make: Callable[[], Sampler]) -> None:
        describe_edges(graph)
        self._make = make
        self._tables = tables(graph)
        self._made: tuple[list[int], Sampler] | None = None  # in one piece: other threads go by it

    def prepare(self) -> Sampler:
        """The sampler for the tables as they lie now: kernels are compiled, or loaded, and memory is taken."""
        addresses = [t.data_ptr() for t in self._tables]
        made = self._made
        if made is None or made[0] != addresses:
            with _lock:
                made = self._made
                if made is None or made[0] != addresses:
                    made = self._made = addresses, self._make()
        return made[1]

    def sample(self, request: NodeRequest) -> SampledSubgraph:
        """Sample around ``request.seeds``."""
        return self.prepare().sample(request)


def prepare(sampler: Any) -> None:
    """Make the engine of a sampler of ours, before its first batch needs it."""
    engine = getattr(sampler, "_engine", None)
    if isinstance(engine, CPUEngine):
        engine.prepare()


def tables(graph: Graph) -> list[Tensor]:
    """All tensors of a graph's topology."""
    found = [t for csc in graph.csc.values() for t in (csc.colptr, csc.row, csc.perm, csc.time, csc.weight)]
    found += [t for csc in graph.csc.values() for t in (csc.alias, csc.num_positive)]
    return [t for t in found if t is not None]


_lock = threading.Lock()


def _renew_lock() -> None:
    """A thread that held it does not exist in a process that was forked meanwhile."""
    global _lock
    _lock = threading.Lock()


in_forked_children(_renew_lock)
