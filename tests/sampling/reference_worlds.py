"""Small random graphs for tests of the numpy reference."""

from dataclasses import dataclass

import numpy as np
import torch

from manyhop.graph import EdgeInput, build_graph
from manyhop.sampling import BatchKey, NodeRequest, ReferenceSampler
from manyhop.sampling.reference import picks as picks

TYPES = (("a", "to", "a"), ("a", "to", "b"), ("b", "to", "a"), ("b", "no", "b"))

NUM_NODES = {"a": 14, "b": 9, "c": 2}


@dataclass(frozen=True)
class World:
    """A random graph as the user gave it, next to what was built from it."""

    ends: dict  # edge type -> (row, col) by the user's edge id
    time: dict  # edge type -> time by the user's edge id
    weight: dict
    graph: object


def make_world(seed, *, times=False, weights=False):
    rng = np.random.default_rng(seed)
    ends, time, weight = {}, {}, {}
    for t in TYPES:
        n = 0 if t[1] == "no" else int(rng.integers(20, 60))
        ends[t] = rng.integers(0, NUM_NODES[t[0]], n), rng.integers(0, NUM_NODES[t[2]], n)
        time[t] = rng.integers(0, 6, n)
        weight[t] = rng.integers(0, 4, n).astype(np.float64)
    inputs = {
        t: EdgeInput(
            row=torch.from_numpy(row),
            col=torch.from_numpy(col),
            time=torch.from_numpy(time[t]) if times and t != TYPES[2] else None,
            weight=torch.from_numpy(weight[t]) if weights and t != TYPES[2] else None,
        )
        for t, (row, col) in ends.items()
    }
    return World(ends, time, weight, build_graph(NUM_NODES, inputs))


def ask(world, spec, seeds, *, batch=0, time_max=None, time_min=None):
    def tensors(values):
        return None if values is None else {t: torch.tensor(v, dtype=torch.int64) for t, v in values.items()}

    key = BatchKey(11, 2, batch)
    request = NodeRequest(key=key, seeds=tensors(seeds), time_max=tensors(time_max), time_min=tensors(time_min))
    return ReferenceSampler(world.graph, spec).sample(request)


def fanouts(*k):
    return {t: k for t in TYPES}
