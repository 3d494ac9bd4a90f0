"""Stages that sample around links and pairs, with negatives, and samplers of the user."""

import pytest
import torch
from gb_graphs import batches, edges_of, random_graph, random_hetero_graph
from torch.utils.data import functional_datapipe

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError

ALL = torch.tensor([-1, -1, -1])
PAIRS = torch.tensor([[3, 5], [5, 9], [3, 1]])


def test_seeds_without_negatives():
    (minibatch,) = batches("node_pairs", PAIRS).sample_neighbor(random_graph(), [2])  # DGL 2.1's name
    nodes = minibatch.sampled_subgraphs[-1].original_column_node_ids
    assert torch.equal(nodes[minibatch.compacted_seeds], PAIRS)
    assert sorted(nodes.tolist()) == [1, 3, 5, 9]
    assert minibatch.node_pairs_with_labels is None


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
    (src, dst), labels = minibatch.node_pairs_with_labels
    assert torch.equal(torch.stack([src, dst], dim=1), minibatch.compacted_seeds)
    assert labels is minibatch.labels


def test_links_by_type():
    graph, name = random_hetero_graph(), "user:likes:item"
    items = gb.HeteroItemSet({name: gb.ItemSet(PAIRS, names="seeds")})
    pipe = gb.ItemSampler(items, batch_size=3).sample_uniform_negative(graph, 4)
    (minibatch,) = pipe.sample_neighbor(graph, [ALL, ALL])
    nodes = minibatch.sampled_subgraphs[-1].original_column_node_ids
    compacted = minibatch.compacted_seeds[name]
    users, items = nodes["user"][compacted[:, 0]], nodes["item"][compacted[:, 1]]
    assert torch.equal(torch.stack([users, items], dim=1), minibatch.seeds[name])
    assert minibatch.labels[name].tolist() == [True] * 3 + [False] * 12
    assert bool((minibatch.seeds[name][3:, 1] < 20).all())  # items, not all nodes
    pairs, labels = minibatch.node_pairs_with_labels
    assert torch.equal(pairs[name][1], compacted[:, 1])
    assert labels is minibatch.labels


def test_negatives_are_uniform():
    graph = random_graph(num_nodes=10)
    (minibatch,) = batches("seeds", PAIRS % 10, batch_size=3).sample_uniform_negative(graph, 2000)
    counts = minibatch.seeds[3:, 1].bincount(minlength=10)
    assert counts.numel() == 10
    assert bool((counts - 600).abs().max() < 120)  # 5 standard deviations


def test_a_sampler_of_the_user():
    graph = random_graph()

    @functional_datapipe("sample_as_the_test_does")
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


def test_a_sampler_of_the_user_gives_what_it_likes():
    dglsp = pytest.importorskip("dgl.sparse")

    @functional_datapipe("sample_matrices")
    class Sampler(gb.SubgraphSampler):
        def sample_subgraphs(self, seeds, seeds_timestamp):
            return seeds, [dglsp.identity((len(seeds), len(seeds)))]

    loader = gb.DataLoader(batches("seeds", torch.arange(8)).sample_matrices())
    (minibatch,) = loader
    assert minibatch.sampled_subgraphs[0].shape == (8, 8)
    assert loader.stats().nodes == 8


def test_negatives_of_the_user():
    class Next(gb.NegativeSampler):
        def _sample_with_etype(self, seeds, etype=None):
            drawn = torch.stack([seeds[:, 0], seeds[:, 1] + 1], dim=1)
            return torch.cat([seeds, drawn]), torch.tensor([1.0, 1, 1, 0, 0, 0]), torch.arange(3).repeat(2)

    (minibatch,) = Next(batches("seeds", PAIRS), 1)
    assert minibatch.seeds.tolist() == [*PAIRS.tolist(), [3, 6], [5, 10], [3, 2]]
    assert minibatch.indexes.tolist() == [0, 1, 2, 0, 1, 2]


def test_negatives_of_the_user_as_in_dgl_2_1():
    class Ends(gb.NegativeSampler):
        def _sample_with_etype(self, node_pairs, etype=None, use_seeds=False):
            return node_pairs[:, 0], None

    with pytest.raises(InputError, match=r"Ends\._sample_with_etype to return seeds, labels and indexes.* got 2 value"):
        next(iter(Ends(batches("seeds", PAIRS), 1)))
