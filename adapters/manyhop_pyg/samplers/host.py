"""What the samplers of this package sample with on the CPU."""

from __future__ import annotations

from manyhop.features import BufferPool
from manyhop.graph import Graph
from manyhop.ranks import cuda
from manyhop.sampling.engines import Engine, HostEngine, Spec, engine_for


def host_engine(graph: Graph, spec: Spec) -> Engine:
    """Return an engine of the CPU whose samples are in recycled memory."""
    engine = engine_for(graph, spec, empty=BufferPool().empty)
    if not (cuda.in_reach() or graph.is_part):  # else a loader that knows where it samples sees to it
        engine.prepare()
    return engine


def prepare(sampler: object) -> None:
    """Make the engine of a sampler of ours, before its first batch needs it."""
    engine = getattr(sampler, "engine", None)
    if isinstance(engine, HostEngine):
        engine.prepare()
