"""Which of the engine's samplers serves a spec."""

from __future__ import annotations

from manyhop.graph import Graph
from manyhop.sampling import NeighborSpec, ReferenceSampler, Sampler


def neighbor_engine(graph: Graph, spec: NeighborSpec) -> Sampler:
    """A sampler of neighbours on the CPU."""
    return ReferenceSampler(graph, spec)
