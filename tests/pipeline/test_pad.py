"""Samples of fixed sizes: what is padding, and that models compute the same."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from manyhop.errors import InputError
from manyhop.graph import EdgeInput, build_graph
from manyhop.loading.pipeline import Counts, Padder, pad_sizes
from manyhop.sampling import BatchKey, NeighborSpec, NodeRequest, ReferenceSampler

NUM_NODES = {"a": 60, "b": 40, "none": 0}
EDGES = {("a", "x", "a"): 300, ("b", "y", "a"): 200, ("a", "z", "b"): 150, ("none", "w", "a"): 0}
MODES = [{}, {"expand": "all"}, {"disjoint": True}, {"subgraph": "induced"}, {"replace": True}]


def build(num_nodes, times):
    """A graph with ``times`` as many edges as ``EDGES``."""
    rng, edges = np.random.default_rng(0), {}
    for e, n in EDGES.items():
        ends = [rng.integers(0, max(num_nodes[t], 1), n * times) for t in (e[0], e[2])]
        edges[e] = EdgeInput(row=torch.from_numpy(ends[0]), col=torch.from_numpy(ends[1]))
    return build_graph(num_nodes, edges)


def sampled(graph, num_nodes, sizes, fanout, **options):
    """Batches of so many seeds of type ``a``."""
    spec = NeighborSpec(fanouts=dict.fromkeys(EDGES, fanout), **options)
    sampler, rng = ReferenceSampler(graph, spec), np.random.default_rng(1)
    for batch, size in enumerate(sizes):
        seeds = {"a": torch.from_numpy(rng.permutation(num_nodes)[:size])}
        yield sampler.sample(NodeRequest(key=BatchKey(1, 0, batch), seeds=seeds))


@pytest.fixture(scope="module")
def graph():
    return build(NUM_NODES, 1)


def samples(graph, **options):
    return sampled(graph, 60, [8] * 5 + [3], (3, 2), **options)


@pytest.mark.parametrize("options", MODES)
def test_what_is_padding(graph, options):
    batches = list(samples(graph, **options))
    sizes = pad_sizes([Counts.of(s) for s in batches[:4]], seeds={"a": 8}, empty=["none"])
    padder = Padder(sizes, num_trees=8)
    for sample in batches:
        (padded,) = padder([sample])
        out, sizes = padded.sample, padder.sizes.grown(padded.grown)
        for t, node in out.node.items():
            mask = padded.node_mask[t]
            assert node.numel() == mask.numel() == sum(sizes.nodes[t])
            assert node[mask].tolist() == sample.node[t].tolist()
            assert not node[~mask].any()
            if options.get("disjoint"):
                assert out.tree[t][mask].tolist() == sample.tree[t].tolist()
                assert not set(out.tree[t][~mask].tolist()) & set(sample.tree[t].tolist())
        assert out.node["a"][: len(sample.node["a"][:8])].tolist()[:3] == sample.node["a"][:3].tolist()
        for e, row in out.row.items():
            mask, src, dst = padded.edge_mask[e], padded.node_mask[e[0]], padded.node_mask[e[2]]
            ends = out.edge_index(e)
            assert ends.data_ptr() == row.data_ptr()
            assert ends.shape == (2, sum(sizes.edges[e])) == (2, mask.numel())
            assert out.node[e[0]][ends[0, mask]].tolist() == sample.node[e[0]][sample.row[e]].tolist()
            assert out.node[e[2]][ends[1, mask]].tolist() == sample.node[e[2]][sample.col[e]].tolist()
            assert out.edge_id[e][mask].tolist() == sample.edge_id[e].tolist()
            assert src[ends[0, mask]].all()
            assert dst[ends[1, mask]].all()
            assert not src[ends[0, ~mask]].any()
            assert not dst[ends[1, ~mask]].any()
            for part in ends[1].split(sizes.edges[e]):  # still sorted, where it was
                assert options.get("expand") == "all" or (part.diff() >= 0).all()
        if sample.num_sampled_nodes is None:
            assert out.num_sampled_nodes is None
        else:
            assert out.num_sampled_nodes == {t: list(n) for t, n in sizes.nodes.items()}
            assert out.num_sampled_edges == {e: list(n) for e, n in sizes.edges.items()}


def counts(nodes, edges=()):
    return Counts(nodes={"a": tuple(nodes)}, edges={("a", "x", "a"): tuple(edges)} if edges else {})


def test_sizes_hold_the_probes_with_a_margin():
    sizes = pad_sizes([counts((8, 100), (500,)), counts((10, 90), (640,))])
    assert sizes.nodes == {"a": (64, 192)}
    assert sizes.edges == {("a", "x", "a"): (704,)}
    assert pad_sizes([counts((64, 128))], seeds={"a": 32}).nodes == {"a": (64, 192)}
    assert pad_sizes([counts((64, 0), (10,))]).nodes == {"a": (128, 64)}  # a node for padding edges


def test_a_batch_that_does_not_fit_gets_larger_sizes():
    sizes = pad_sizes([counts((8, 1000), (5000,))])
    assert sizes.grown(0) == sizes
    assert sizes.times_to_fit(counts((8, 900), (4000,))) == 0
    assert sizes.times_to_fit(counts((8, 1200), (4000,))) == 1
    assert sizes.times_to_fit(counts((8, 1200), (10_000,))) == 3
    assert sizes.grown(1).edges[("a", "x", "a")][0] >= 1.25 * 5000


def test_blocks_that_were_empty_grow_too():
    sizes = pad_sizes([counts((8, 0))])
    assert sizes.nodes == {"a": (64, 0)}
    assert sizes.grown(sizes.times_to_fit(counts((8, 200)))).nodes["a"][1] > 200
    fixed = replace(sizes, empty=frozenset(["a"]))
    assert fixed.grown(2) == fixed


def test_a_sample_that_is_too_large_is_padded_to_larger_sizes(graph):
    small, large = (next(samples(graph, replace=again)) for again in (False, True))
    sizes = pad_sizes([Counts.of(small)])
    edges = {e: tuple(n // 2 for n in blocks) for e, blocks in Counts.of(small).edges.items()}
    padder = Padder(replace(sizes, edges=edges), num_trees=8)
    first, second = padder([small, large])
    assert first.grown == second.grown == 1
    assert [n.shape for n in first.sample.node.values()] == [n.shape for n in second.sample.node.values()]
    assert [r.shape for r in first.sample.row.values()] == [r.shape for r in second.sample.row.values()]


def test_wrong_arguments():
    with pytest.raises(InputError, match="at least one batch"):
        pad_sizes([])


@pytest.mark.parametrize(
    ("counted", "held"),
    [
        ([10_000] * 16, 10_100),  # at least a hundredth
        ([10_000] * 15 + [10_100], 10_500),  # four times the difference between the largest and the median
        ([10_000] * 15 + [20_000], 22_000),  # at most a tenth
        ([10_000] * 15, 11_000),  # few batches
        ([10_000] * 15 + [1], 10_100),  # the last one may be smaller
    ],
)
def test_margins_depend_on_how_much_counts_differ(counted, held):
    sizes = pad_sizes([counts((8, n), (n,)) for n in counted])
    assert sizes.edges == {("a", "x", "a"): (-(-held // 64) * 64,)}
    assert sizes.nodes["a"][1] == -(-(held + 32) // 64) * 64
