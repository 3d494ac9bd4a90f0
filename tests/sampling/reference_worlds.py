"""Small random graphs, and what the contract says of samples of them but which edges are picked."""

import itertools
from dataclasses import dataclass

import numpy as np
import torch

from manyhop.graph import EdgeInput, build_graph
from manyhop.sampling import BatchKey, NodeRequest, ReferenceSampler
from manyhop.sampling.reference import picks as picks

TYPES = (("a", "to", "a"), ("a", "to", "b"), ("b", "to", "a"), ("b", "no", "b"))

NUM_NODES = {"a": 14, "b": 9, "c": 2}

SPECS = {
    "plain": {},
    "all": {"expand": "all"},
    "replace": {"replace": True},
    "disjoint": {"disjoint": True},
    "weighted": {"weighted": True},
}
SEEDS = [{"a": [3, 3, 7], "b": [0, 5, 0]}, {"b": [2]}, {"a": [], "b": []}, {"a": [13, 1]}]


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


def request(seeds, batch=0, **times):
    def tensors(values):
        return values and {t: torch.tensor(v, dtype=torch.int64) for t, v in values.items()}

    times = {name: tensors(values) for name, values in times.items()}
    return NodeRequest(key=BatchKey(1, 0, batch), seeds=tensors(seeds), **times)


def ask(world, spec, seeds, **times):
    return ReferenceSampler(world.graph, spec).sample(request(seeds, **times))


def fanouts(*k):
    return {t: k for t in TYPES}


def column(world, t, v, *, time=False, positive=False):
    """Edges of a column in stored order."""
    edges = np.flatnonzero(world.ends[t][1] == v)
    if positive and t != TYPES[2]:
        edges = edges[world.weight[t][edges] > 0]
    if time and t != TYPES[2]:
        edges = edges[np.argsort(world.time[t][edges], kind="stable")]
    return edges


def trees_of(sample, t):
    return [0] * sample.node[t].numel() if sample.tree is None else sample.tree[t].tolist()


def edges_by_hop(sample, t):
    """(local row, local col, edge id) of each sampled edge, per hop."""
    edges = list(zip(sample.row[t].tolist(), sample.col[t].tolist(), sample.edge_id[t].tolist(), strict=True))
    ends = [0, *itertools.accumulate(sample.num_sampled_edges[t])]
    assert ends[-1] == len(edges)
    return [edges[i:j] for i, j in itertools.pairwise(ends)]


def frontier(sample, t, hop, expand):
    """Local ids that ask for edges of a type in a hop."""
    ends = [0, *itertools.accumulate(sample.num_sampled_nodes[t[2]])]
    return range(ends[hop] if expand == "new" else 0, ends[hop + 1])


def check(world, spec, seeds, sample, candidates=None):
    """Check all that the contract says of a sample but which edges are picked.

    ``candidates(edge type, node, tree)`` are the edges that a node may get; where it gets all, their order is checked.
    """
    for t, (row, col) in world.ends.items():
        assert (row[sample.edge_id[t]] == sample.node[t[0]][sample.row[t]].numpy()).all()
        assert (col[sample.edge_id[t]] == sample.node[t[2]][sample.col[t]].numpy()).all()
    check_nodes(spec, seeds, sample)
    for t in TYPES:
        for hop, edges in enumerate(edges_by_hop(sample, t)):
            k = spec.fanouts[t][hop]
            assert [i for _, i, _ in edges] == sorted(i for _, i, _ in edges)
            got = {i: [e for _, j, e in edges if j == i] for i in frontier(sample, t, hop, spec.expand)}
            assert sum(map(len, got.values())) == len(edges), "only the frontier asks"
            for i, picked in got.items():
                node, tree = int(sample.node[t[2]][i]), trees_of(sample, t[2])[i]
                if candidates is None:
                    allowed, picked = column(world, t, node, positive=spec.weighted).tolist(), sorted(picked)
                else:
                    allowed = list(candidates(t, node, tree))
                assert set(picked) <= set(allowed)
                if spec.replace and k >= 0:
                    assert len(picked) == (k if allowed else 0)
                elif k == -1 or k >= len(allowed):
                    assert picked == allowed
                else:
                    assert len(set(picked)) == len(picked) == k


def check_nodes(spec, seeds, sample):
    """Replay the batch: nodes are the seeds, then whatever first occurs as a neighbour, in the same tree."""
    nodes, counts, tree = {t: [] for t in NUM_NODES}, {t: [] for t in NUM_NODES}, itertools.count()
    assert (sample.tree is not None) == spec.disjoint
    for t, ids in seeds.items():
        nodes[t] += [(next(tree) if spec.disjoint else 0, int(seed)) for seed in ids]
    for hop in range(len(spec.fanouts[TYPES[0]]) + 1):
        for t in NUM_NODES:
            counts[t].append(len(nodes[t]) - sum(counts[t]))
        for t in TYPES if hop < len(spec.fanouts[TYPES[0]]) else ():
            for j, i, _ in edges_by_hop(sample, t)[hop]:
                who = trees_of(sample, t[2])[i], int(sample.node[t[0]][j])
                if who not in nodes[t[0]]:
                    nodes[t[0]].append(who)
                assert nodes[t[0]].index(who) == j, "the first copy"
    for t in NUM_NODES:
        assert nodes[t] == list(zip(trees_of(sample, t), sample.node[t].tolist(), strict=True))
        assert counts[t] == sample.num_sampled_nodes[t]
