"""Which of the engine's samplers serves a spec."""

from __future__ import annotations

from manyhop.features import BufferPool
from manyhop.graph import Graph
from manyhop.sampling import HGTSpec, NeighborSpec, ReferenceHGTSampler, Sampler


def neighbor_engine(graph: Graph, spec: NeighborSpec) -> Sampler:
    """A sampler of neighbours on the CPU, whose results lie in recycled memory."""
    from manyhop.sampling._cpu_sampler import CPUSampler

    return CPUSampler(graph, spec, empty=BufferPool().empty)


def hgt_engine(graph: Graph, spec: HGTSpec) -> Sampler:
    """A sampler of the Heterogeneous Graph Transformer's kind."""
    return ReferenceHGTSampler(graph, spec)
