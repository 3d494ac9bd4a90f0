"""Stages that sample around links and pairs, with negatives, and samplers of the user."""

import pytest
import torch
from gb_graphs import batches, check_layers, edges_of, in_edges, random_graph, random_hetero_graph

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError

ALL = torch.tensor([-1, -1, -1])
PAIRS = torch.tensor([[3, 5], [5, 9], [3, 1]])


@pytest.mark.parametrize("negatives", [None, 2])
def test_node_pairs(negatives):
    graph = random_graph()
    pipe = batches("node_pairs", PAIRS)
    pipe = pipe if negatives is None else pipe.sample_uniform_negative(graph, negatives)
    (minibatch,) = pipe.sample_neighbor(graph, [2])
    nodes = minibatch.sampled_subgraphs[-1].original_column_node_ids
    src, dst = minibatch.compacted_node_pairs
    assert torch.equal(torch.stack([nodes[src], nodes[dst]], dim=1), PAIRS)
    assert nodes.unique().numel() == nodes.numel()
    assert minibatch.negative_srcs is None
    if negatives is None:
        assert sorted(nodes.tolist()) == [1, 3, 5, 9]
        assert minibatch.compacted_negative_dsts is None
    else:
        assert minibatch.negative_dsts.shape == (3, 2)
        assert torch.equal(nodes[minibatch.compacted_negative_dsts], minibatch.negative_dsts)
        (src, dst), labels = minibatch.node_pairs_with_labels
        assert labels.tolist() == [1.0] * 3 + [0.0] * 6
        assert nodes[src].tolist() == [3, 5, 3, 3, 3, 5, 5, 3, 3]


def test_seeds_that_are_pairs():
    graph = random_graph()
    (minibatch,) = batches("seeds", PAIRS).sample_uniform_negative(graph, 2).sample_neighbor(graph, [2])
    assert minibatch.seeds.shape == minibatch.compacted_seeds.shape == (9, 2)
    nodes = minibatch.sampled_subgraphs[-1].original_column_node_ids
    assert torch.equal(nodes[minibatch.compacted_seeds], minibatch.seeds)
    assert torch.equal(minibatch.seeds[:3], PAIRS)
    assert torch.equal(minibatch.labels, torch.tensor([1.0] * 3 + [0.0] * 6))
    assert minibatch.labels.dtype == torch.float32  # which losses take
    assert minibatch.indexes.tolist() == [0, 1, 2, 0, 0, 1, 1, 2, 2]
    assert torch.equal(minibatch.seeds[:, 0], PAIRS[minibatch.indexes, 0])
    assert bool((minibatch.seeds < 60).all())


@pytest.mark.parametrize("names", ["seeds", "node_pairs"])
def test_links_by_type(names):
    graph, name = random_hetero_graph(), "user:likes:item"
    pairs = torch.tensor([[3, 5], [5, 9], [3, 1]])
    items = gb.HeteroItemSet({name: gb.ItemSet(pairs, names=names)})
    (minibatch,) = (
        gb.ItemSampler(items, batch_size=3).sample_uniform_negative(graph, 4).sample_neighbor(graph, [ALL, ALL])
    )
    nodes = minibatch.sampled_subgraphs[-1].original_column_node_ids
    if names == "node_pairs":
        src, dst = minibatch.compacted_node_pairs[name]
        assert torch.equal(torch.stack([nodes["user"][src], nodes["item"][dst]], dim=1), pairs)
        drawn = minibatch.negative_dsts[name]
        assert drawn.shape == (3, 4)
        assert torch.equal(nodes["item"][minibatch.compacted_negative_dsts[name]], drawn)
        assert minibatch.negative_srcs == {name: None}
        assert minibatch.negative_node_pairs[name][0].tolist() == src.repeat_interleave(4).view(3, 4).tolist()
    else:
        compacted = minibatch.compacted_seeds[name]
        users, items = nodes["user"][compacted[:, 0]], nodes["item"][compacted[:, 1]]
        assert torch.equal(torch.stack([users, items], dim=1), minibatch.seeds[name])
        assert minibatch.labels[name].tolist() == [True] * 3 + [False] * 12
        drawn = minibatch.seeds[name][3:, 1]
    assert bool((drawn < 20).all())  # items, not all nodes


def test_negatives_are_uniform():
    graph = random_graph(num_nodes=10)
    (minibatch,) = batches("node_pairs", PAIRS % 10, batch_size=3).sample_uniform_negative(graph, 2000)
    counts = minibatch.negative_dsts.view(-1).bincount(minlength=10)
    assert counts.numel() == 10
    assert bool((counts - 600).abs().max() < 120)  # 5 standard deviations


def test_a_sampler_of_the_user():
    graph = random_graph()

    @gb.functional_datapipe("sample_as_the_test_does")
    class Sampler(gb.SubgraphSampler):
        def __init__(self, datapipe, graph, fanouts):
            super().__init__(datapipe)
            self.graph, self.fanouts = graph, fanouts

        def sample_subgraphs(self, seeds, seeds_timestamp):
            assert seeds_timestamp is None
            layers = []
            for fanout in reversed(self.fanouts):
                sampled = self.graph.sample_neighbors(seeds, torch.tensor([fanout]))
                rows, csc = gb.unique_and_compact_csc_formats(sampled.sampled_csc, seeds)
                layers.insert(0, gb.SampledSubgraphImpl(csc, seeds, rows, sampled.original_edge_ids))
                seeds = rows
            return seeds, layers

    (minibatch,) = batches("seeds", torch.arange(8)).sample_as_the_test_does(graph, [-1, -1])
    (expected,) = batches("seeds", torch.arange(8)).sample_neighbor(graph, [-1, -1])
    for layer, same in zip(minibatch.sampled_subgraphs, expected.sampled_subgraphs, strict=True):
        assert edges_of(layer) == edges_of(same)
    assert not hasattr(minibatch, "_seed_nodes")
    with pytest.raises(InputError, match="Choose another"):
        gb.functional_datapipe("sample_neighbor")(Sampler)


def test_a_sampler_of_the_user_gives_what_it_likes():
    dglsp = pytest.importorskip("dgl.sparse")

    @gb.functional_datapipe("sample_matrices")
    class Sampler(gb.SubgraphSampler):
        def sample_subgraphs(self, seeds, seeds_timestamp):
            return seeds, [dglsp.identity((len(seeds), len(seeds)))]

    loader = gb.DataLoader(batches("seeds", torch.arange(8)).sample_matrices())
    (minibatch,) = loader
    assert minibatch.sampled_subgraphs[0].shape == (8, 8)
    assert loader.stats().nodes == 8


def test_one_layer_by_a_function_of_the_user():
    graph, calls = random_graph(), []

    def sample(nodes, fanout, replace, prob_name):
        calls.append((nodes.numel(), fanout.tolist(), replace, prob_name))
        return graph.in_subgraph(nodes)

    (minibatch,) = gb.NeighborSampler(batches("seeds", torch.arange(8)), graph, [7, 9], sampler=sample)
    assert calls[0] == (8, [9], False, None)
    assert calls[1][1] == [7]
    assert edges_of(minibatch.sampled_subgraphs[1]) == in_edges(graph.edges, torch.arange(8))
    check_layers(minibatch, torch.arange(8))


def test_negatives_of_the_user():
    class Fixed(gb.NegativeSampler):
        def _sample_with_etype(self, node_pairs, etype=None, use_seeds=False):
            return node_pairs[0].repeat_interleave(self.negative_ratio) + 1, None

    (minibatch,) = Fixed(batches("node_pairs", PAIRS), 2)
    assert minibatch.negative_srcs.tolist() == [[4, 4], [6, 6], [4, 4]]
    assert minibatch.negative_dsts is None
