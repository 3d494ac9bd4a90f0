"""BidirectionalNeighborSampler."""

import pickle

import pytest
import torch
from helpers_pyg import all_same, check_batch
from torch_geometric.data import Data
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput
from torch_geometric.sampler.base import NumNeighbors

from manyhop.errors import InputError
from manyhop_pyg import BidirectionalNeighborSampler, LinkNeighborLoader, NeighborLoader

CHAIN = torch.tensor([[0, 0, 2], [1, 2, 3]])
"""Of PyG's test of the same: 0 -> 1, 0 -> 2 -> 3."""


def of_chain(num_neighbors, seeds, **kwargs):
    sampler = BidirectionalNeighborSampler(Data(edge_index=CHAIN, num_nodes=4), num_neighbors, **kwargs)
    return sampler.sample_from_nodes(NodeSamplerInput(torch.arange(len(seeds)), torch.tensor(seeds)))


def as_lists(out):
    lists = [x if x is None else x.tolist() for x in (out.node, out.row, out.col, out.edge, out.batch)]
    return [*lists, out.num_sampled_nodes, out.num_sampled_edges]


def test_one_hop():
    out = of_chain([1], [2])
    assert as_lists(out) == [[2, 0, 3], [1, 0], [0, 2], [1, 2], None, [1, 1, 0, 1], [1, 1]]
    assert out.metadata[0].tolist() == [0]


def test_several_hops():
    nodes, edges = [2, 2] + [0] * 14, [2, 0, 1] + [0] * 5
    assert as_lists(of_chain([2] * 4, [1, 3])) == [[1, 3, 0, 2], [2, 3, 2], [0, 1, 3], [0, 2, 1], None, nodes, edges]
    out = of_chain([2] * 4, [1, 3], disjoint=True)
    assert out.node.tolist() == [1, 3, 0, 2, 0, 2, 1, 3]
    assert out.batch.tolist() == [0, 1, 0, 1, 1, 0, 1, 0]
    assert out.edge.tolist() == [0, 2, 1, 1, 0, 2]
    assert out.row.tolist() == [2, 3, 4, 2, 4, 5]
    assert out.col.tolist() == [0, 1, 3, 5, 6, 7]
    assert out.num_sampled_nodes == [2, 2, 0, 0, 0, 1, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0]
    assert out.num_sampled_edges == [2, 0, 1, 1, 0, 2, 0, 0]


@pytest.mark.parametrize("disjoint", [False, True])
def test_all_neighbours_are_those_of_the_graph(data, disjoint):
    sampler = BidirectionalNeighborSampler(data, [-1, -1], disjoint=disjoint)
    seeds = torch.tensor([3, 8, 55, 21])
    out = sampler.sample_from_nodes(NodeSamplerInput(None, seeds))
    src, dst = data.edge_index
    nodes, edges = [], []
    for tree in [[s] for s in seeds.tolist()] if disjoint else [seeds.tolist()]:
        reached, taken = set(tree), set()
        for _ in range(2):
            near = {i for i in range(300) if {src[i].item(), dst[i].item()} & reached}
            taken |= {i for i in near if dst[i].item() in reached or src[i].item() in reached}
            reached |= {end for i in near for end in (src[i].item(), dst[i].item())}
        nodes += sorted(reached)
        edges += sorted(taken)
    assert sorted(out.node.tolist()) == sorted(nodes)
    assert sorted(out.edge.tolist()) == sorted(edges)
    assert torch.equal(torch.stack([out.node[out.row], out.node[out.col]]), data.edge_index[:, out.edge])
    assert sum(out.num_sampled_nodes) == len(nodes)
    assert sum(out.num_sampled_edges) == len(edges)
    if disjoint:
        assert torch.equal(out.batch[out.row], out.batch[out.col])
        assert torch.equal(out.node[:4], seeds)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_in_a_loader(data, num_workers):
    how = {"batch_size": 9, "seed": 3, "num_workers": num_workers}
    sampler = BidirectionalNeighborSampler(data, [3, 1], weight_attr="edge_weight")
    batches = list(NeighborLoader(data, [], neighbor_sampler=sampler, **how))
    for batch in batches:
        check_batch(batch, data)
    copy = pickle.loads(pickle.dumps(sampler))
    assert all_same(list(NeighborLoader(data, [], neighbor_sampler=copy, **(how | {"num_workers": 0}))), batches)
    sampler.num_neighbors = [0]
    assert next(iter(NeighborLoader(data, [], neighbor_sampler=sampler, **how))).num_edges == 0
    links = LinkNeighborLoader(data, [], neighbor_sampler=copy, **how)
    batch = next(iter(links))
    check_batch(batch, data)
    assert torch.equal(batch.n_id[batch.edge_label_index], data.edge_index[:, :9])


def test_bidirectional_subgraphs(data):
    sampler = BidirectionalNeighborSampler(data, [2], subgraph_type="bidirectional")
    out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(9)))
    pairs = set(zip(out.row.tolist(), out.col.tolist(), strict=True))
    assert pairs == {(col, row) for row, col in pairs}


def test_what_is_refused(data, hetero):
    for arguments, message in (
        ((data, {("a", "b", "c"): [2]}), "num_neighbors as a list"),
        ((data, NumNeighbors([])), "at least one hop"),
        ((hetero, [2]), "Expected data without types"),
    ):
        with pytest.raises(InputError, match=message):
            BidirectionalNeighborSampler(*arguments)
    with pytest.raises(InputError, match="time_attr='time'"):
        BidirectionalNeighborSampler(data, [2], time_attr="time")
    sampler = BidirectionalNeighborSampler(data, [2])
    with pytest.raises(InputError, match="got duplicates"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([1, 1])))
    with pytest.raises(InputError, match="Expected no neg_sampling"):
        sampler.sample_from_edges(EdgeSamplerInput(None, *data.edge_index[:, :2]), "binary")
    with pytest.raises(InputError, match="seed_time"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([1]), torch.tensor([1])))
