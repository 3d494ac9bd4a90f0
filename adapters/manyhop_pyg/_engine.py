"""Which of the engine's samplers serves a spec."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from manyhop.features import BufferPool
from manyhop.graph import Graph
from manyhop.sampling import CPUSampler, HGTSpec, NeighborSpec, NodeRequest, SampledSubgraph, Sampler
from manyhop.sampling._cpu_hgt_sampler import CPUHGTSampler


def neighbor_engine(graph: Graph, spec: NeighborSpec) -> Sampler:
    """A sampler of neighbours on the CPU, whose results lie in recycled memory."""
    empty = BufferPool().empty
    return _Following(graph, lambda: CPUSampler(graph, spec, empty=empty))


def hgt_engine(graph: Graph, spec: HGTSpec) -> Sampler:
    """The same for sampling of the Heterogeneous Graph Transformer's kind."""
    empty = BufferPool().empty
    return _Following(graph, lambda: CPUHGTSampler(graph, spec, empty=empty))


class _Following:
    """A sampler that is made anew when the graph's tables have moved in memory.

    They move when they are shared with another process, in place: when a loader is passed to a spawned process, or the
    data whose memory they use. Samplers know addresses.
    """

    def __init__(self, graph: Graph, make: Callable[[], Sampler]) -> None:
        self._make = make
        self._tables = list(tables(graph))
        self._follow()

    def _follow(self) -> None:
        addresses = [t.data_ptr() for t in self._tables]
        self._sampler = self._make()
        self._addresses = addresses  # last: other threads go by them

    def sample(self, request: NodeRequest) -> SampledSubgraph:
        """Sample around ``request.seeds``."""
        if self._addresses != [t.data_ptr() for t in self._tables]:
            self._follow()
        return self._sampler.sample(request)


def tables(graph: Graph) -> list[Tensor]:
    """All tensors of a graph's topology."""
    found = [t for csc in graph.csc.values() for t in (csc.colptr, csc.row, csc.perm, csc.time, csc.weight)]
    found += [t for csc in graph.csc.values() for t in (csc.alias, csc.num_positive)]
    return [t for t in found if t is not None]
