"""The reference of HGT sampling against its properties, an independent count, and torch-sparse."""

import numpy as np
import pytest
import torch

from manyhop.errors import InputError
from manyhop.graph import EdgeInput, build_graph
from manyhop.sampling import BatchKey, HGTSpec, NodeRequest, ReferenceHGTSampler
from manyhop.sampling.reference import picks as picks

WRITES, WRITTEN, CITES = ("author", "writes", "paper"), ("paper", "written", "author"), ("paper", "cites", "paper")
NUM_NODES = {"paper": 60, "author": 25, "lonely": 3}


def random_edges(seed=0, cites=200):
    rng = np.random.default_rng(seed)
    author, paper = rng.integers(0, 25, 90), rng.integers(0, 60, 90)
    return {
        WRITES: (author, paper),
        WRITTEN: (paper, author),
        CITES: (rng.integers(0, 60, cites), rng.integers(0, 60, cites)),
    }


def graph_of(edges):
    inputs = {t: EdgeInput(row=torch.from_numpy(r), col=torch.from_numpy(c)) for t, (r, c) in edges.items()}
    return build_graph(NUM_NODES, inputs)


def ask(graph, num_samples, seeds, *, batch=0):
    sampler = ReferenceHGTSampler(graph, HGTSpec(num_samples=num_samples))
    tensors = {t: torch.tensor(s, dtype=torch.int64) for t, s in seeds.items()}
    return sampler.sample(NodeRequest(key=BatchKey(3, 0, batch), seeds=tensors))


def take(n, hops=2):
    return dict.fromkeys(NUM_NODES, (n,) * hops)


def check_induced(edges, out):
    """Every edge among the sampled nodes, once per copy of its destination, from the first copy of its source."""
    for t, (row, col) in edges.items():
        src, dst = out.node[t[0]].tolist(), out.node[t[2]].tolist()
        expected = [
            (src.index(int(row[e])), i, int(e))
            for i, v in enumerate(dst)
            for e in np.flatnonzero(col == v)
            if int(row[e]) in src
        ]
        got = zip(out.row[t].tolist(), out.col[t].tolist(), out.edge_id[t].tolist(), strict=True)
        assert list(got) == expected


@pytest.mark.parametrize("seeds", [{"paper": [5, 0, 9]}, {"author": [2]}, {"paper": [7, 3, 7]}, {"lonely": [1]}])
@pytest.mark.parametrize("n", [0, 1, 4, 1000])
def test_nodes_and_edges(seeds, n):
    edges = random_edges()
    out = ask(graph_of(edges), take(n), seeds)
    assert set(out.node) == set(NUM_NODES)
    for t, nodes in out.node.items():
        begin = len(seeds.get(t, []))
        assert nodes[:begin].tolist() == seeds.get(t, [])
        assert len(set(nodes[begin:].tolist()) - set(seeds.get(t, []))) == nodes.numel() - begin
        counts = out.num_sampled_nodes[t]
        assert counts[0] == begin
        assert sum(counts) == nodes.numel()
    for hop in (0, 1):  # as many as asked for, or all neighbours of what was there
        before = {t: set(nodes[: sum(out.num_sampled_nodes[t][: hop + 1])].tolist()) for t, nodes in out.node.items()}
        candidates = {t: set() for t in NUM_NODES}
        for t, (row, col) in edges.items():
            candidates[t[0]] |= {int(r) for r, c in zip(row, col, strict=True) if int(c) in before[t[2]]}
        for t, counts in out.num_sampled_nodes.items():
            assert counts[hop + 1] == min(n, len(candidates[t] - before[t]))
            end = sum(counts[: hop + 2])
            assert set(out.node[t][end - counts[hop + 1] : end].tolist()) <= candidates[t] - before[t]
    check_induced(edges, out)
    assert out.num_sampled_edges is None
    assert out.tree is None


@pytest.mark.parametrize(("limit", "d", "expected"), [(7, 60, 7), (60, 60, 60), (None, 59, 59), (59, 60, 59)])
def test_candidates_are_those_of_a_choice(limit, d, expected):
    row, col = torch.arange(1, d + 1), torch.zeros(d, dtype=torch.int64)
    graph = build_graph({"paper": 61}, {CITES: EdgeInput(row=row, col=col)})
    sampler = ReferenceHGTSampler(graph, HGTSpec(num_samples={"paper": (1000,)}, max_neighbors=limit))
    out = sampler.sample(NodeRequest(key=BatchKey(3, 0, 0), seeds={"paper": torch.tensor([0])}))
    assert out.num_sampled_nodes["paper"] == [1, expected]


def test_no_hops_gives_the_edges_among_the_seeds():
    edges = random_edges()
    out = ask(graph_of(edges), take(1, 0), {"paper": list(range(30)), "author": [1, 2]})
    assert out.num_sampled_nodes["paper"] == [30]
    check_induced(edges, out)
    assert out.row[CITES].numel() > 0


def test_wrong_input():
    graph = graph_of(random_edges())
    with pytest.raises(InputError, match="missing"):
        ReferenceHGTSampler(graph, HGTSpec(num_samples={"paper": (1,)}))
    for limit in (0, -1, 1025, 2.5, "50", True):
        with pytest.raises(InputError, match="from 1 to 1024, got"):
            ReferenceHGTSampler(graph, HGTSpec(num_samples=take(1), max_neighbors=limit))
    with pytest.raises(InputError, match="0 or more"):
        ReferenceHGTSampler(graph, HGTSpec(num_samples=take(-1)))
    with pytest.raises(InputError, match="got 60"):
        ask(graph, take(1), {"paper": [60]})


@pytest.mark.parametrize("seeds", [[5, 0, 9], [1], [7, 3, 7]])
def test_same_sets_as_torch_sparse(seeds):
    pytest.importorskip("torch_sparse")
    graph = graph_of(random_edges())
    name = {t: "__".join(t) for t in graph.edge_types}
    node, row, col, edge = torch.ops.torch_sparse.hgt_sample(
        {name[t]: c.colptr for t, c in graph.csc.items()},
        {name[t]: c.row.long() for t, c in graph.csc.items()},
        {"paper": torch.tensor(seeds)},
        {t: [1000] * 2 for t in NUM_NODES},
        2,
    )
    out = ask(graph, take(1000), {"paper": seeds})
    for t in NUM_NODES:
        assert sorted(node.get(t, torch.empty(0)).tolist()) == sorted(out.node[t].tolist())
    for t, c in graph.csc.items():
        perm = torch.arange(c.num_edges) if c.perm is None else c.perm
        theirs = torch.stack([node[t[0]][row[name[t]]], node[t[2]][col[name[t]]], perm[edge[name[t]]]])
        ours = torch.stack([out.node[t[0]][out.row[t]], out.node[t[2]][out.col[t]], out.edge_id[t]])
        assert sorted(theirs.t().tolist()) == sorted(ours.t().tolist())
