"""RandomNodeLoader: parts of the nodes with the edges inside, as PyG's."""

import pytest
import torch
import torch_geometric.loader
import torch_geometric.typing
from helpers_pyg import all_same, check_batch, check_hetero_batch, stores_of
from torch_geometric.data import Batch
from torch_geometric.utils import k_hop_subgraph

from manyhop.errors import InputError
from manyhop_pyg import RandomNodeLoader, ShaDowKHopSampler


def sorted_edges(edge_index):
    return edge_index[:, (edge_index[0] * 1000 + edge_index[1]).argsort()]


def test_as_pyg(data):
    ours, theirs = RandomNodeLoader(data, 4), torch_geometric.loader.RandomNodeLoader(data, 4)
    assert isinstance(ours, torch_geometric.loader.RandomNodeLoader)
    assert len(ours) == len(theirs) == 4
    for batch, expected in zip(ours, theirs, strict=True):
        check_batch(batch, data)
        assert set(batch.keys()) == {*expected.keys(), "n_id", "e_id"}
        assert torch.equal(batch.x, expected.x)
        assert torch.equal(batch.y, expected.y)
        assert torch.equal(sorted_edges(batch.edge_index), sorted_edges(expected.edge_index))
        assert torch.equal(batch.edge_attr.sort(0).values, expected.edge_attr.sort(0).values)


def test_types_as_pyg(hetero):
    ours, theirs = RandomNodeLoader(hetero, 3), torch_geometric.loader.RandomNodeLoader(hetero, 3)
    for batch, expected in zip(ours, theirs, strict=True):
        check_hetero_batch(batch, hetero)
        for store, same in zip(batch.stores, expected.stores, strict=True):
            assert set(store.keys()) - {"n_id", "e_id"} == set(same.keys())
        for t in hetero.node_types:
            assert batch[t].num_nodes == expected[t].num_nodes
        for t in hetero.edge_types:
            assert torch.equal(sorted_edges(batch[t].edge_index), sorted_edges(expected[t].edge_index))


@pytest.mark.parametrize("parts", [1, 7, 60, 100])
def test_each_node_is_in_one_part(data, parts):
    epoch = list(RandomNodeLoader(data, parts, shuffle=True, seed=1))
    assert len(epoch) == min(parts, 60)
    assert torch.cat([batch.n_id for batch in epoch]).sort().values.tolist() == list(range(60))


def test_stores(data):
    def make(source=data):
        return RandomNodeLoader(source, 5, shuffle=True, seed=1)

    for batch, other in zip(make(stores_of(data)), make(), strict=True):
        assert torch.equal(batch.x, other.x)
        assert torch.equal(batch.edge_index, other.edge_index)


def test_its_own_batch_size_may_be_handed_back(data):
    assert all_same(list(RandomNodeLoader(data, 4, batch_size=15)), list(RandomNodeLoader(data, 4)))


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        (0, {}, "num_parts to be an integer of at least 1, got 0"),
        (2.5, {}, "num_parts to be an integer"),
        (2, {"batch_size": 3}, "Expected no batch_size, got one: num_parts"),
        (2, {"input_nodes": [3]}, "Expected no input_nodes"),
    ],
    ids=str,
)
def test_wrong_arguments(data, parts, options, message):
    with pytest.raises(InputError, match=message):
        RandomNodeLoader(data, parts, **options)


SEEDS = torch.tensor([3, 55, 3, 12, 40, 0, 7])


def graphs_of(batch, edge_attr, n_id):
    """For each graph of a batch: its seed, its nodes, and its edges by id (the fixture's ``edge_attr``)."""
    found = []
    for i, (begin, end) in enumerate(zip(batch.ptr[:-1].tolist(), batch.ptr[1:].tolist(), strict=True)):
        inside = (batch.edge_index[0] >= begin) & (batch.edge_index[0] < end)
        ids = sorted(edge_attr[inside].view(-1).tolist())
        found.append((int(n_id[batch.root_n_id[i]]), sorted(n_id[begin:end].tolist()), ids))
    return found


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_all_neighbours(data, dtype):
    data.edge_index = data.edge_index.to(dtype)
    loader = ShaDowKHopSampler(data, 2, -1, SEEDS, batch_size=4)
    assert isinstance(loader, torch_geometric.loader.ShaDowKHopSampler)
    assert len(loader) == 2
    seeds = iter(SEEDS.tolist())
    for batch in loader:
        assert isinstance(batch, Batch)
        assert batch.edge_index.dtype == dtype
        assert batch.num_graphs == batch.batch_size == batch.input_id.numel()
        assert torch.equal(batch.batch, batch.batch.sort().values)
        assert torch.equal(batch.edge_index[1], batch.edge_index[1].sort().values)
        assert torch.equal(batch.n_id[batch.edge_index].long(), data.edge_index[:, batch.e_id].long())
        assert torch.equal(batch.batch[batch.edge_index[0]], batch.batch[batch.edge_index[1]])
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        assert torch.equal(batch.y, data.y[batch.n_id[batch.root_n_id]])
        for seed, nodes, edges in graphs_of(batch, batch.edge_attr, batch.n_id):
            assert seed == next(seeds)
            expected, _, _, inside = k_hop_subgraph(seed, 2, data.edge_index.long(), num_nodes=60)
            assert nodes == expected.tolist()
            assert edges == inside.nonzero()[:, 0].tolist()


@pytest.mark.skipif(not torch_geometric.typing.WITH_TORCH_SPARSE, reason="PyG's own needs torch-sparse")
def test_graphs_of_seeds_as_pyg(data):
    data.id = torch.arange(60)
    mask = torch.zeros(60, dtype=torch.bool)
    mask[SEEDS] = True
    ours = ShaDowKHopSampler(data, 2, 400, mask, batch_size=4)
    theirs = torch_geometric.loader.ShaDowKHopSampler(data, 2, 400, mask, batch_size=4)
    for batch, expected in zip(ours, theirs, strict=True):
        assert torch.equal(batch.ptr, expected.ptr)
        assert torch.equal(batch.y, expected.y)
        assert graphs_of(batch, batch.edge_attr, batch.id) == graphs_of(expected, expected.edge_attr, expected.id)


def test_numbers_of_neighbours(data):
    def make(**options):
        return ShaDowKHopSampler(data, 2, 2, batch_size=9, shuffle=True, seed=1, **options)

    expected = list(make())
    assert all(batch.num_nodes <= 9 * (1 + 2 + 4) for batch in expected)
    one = make().batch(expected[2].n_id[expected[2].root_n_id], key=(1, 0, 2))
    assert torch.equal(one.n_id, expected[2].n_id)
    assert torch.equal(one.edge_index, expected[2].edge_index)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 0}, "depth to be an integer of at least 1"),
        ({"num_neighbors": [3]}, "num_neighbors to be an integer"),
        ({"input_nodes": SEEDS}, "Expected no input_nodes"),
    ],
)
def test_wrong_arguments_of_graphs_of_seeds(data, arguments, message):
    with pytest.raises(InputError, match=message):
        ShaDowKHopSampler(data, **{"depth": 2, "num_neighbors": 3} | arguments)


def test_typed_data_has_other_loaders(hetero):
    with pytest.raises(InputError, match="got HeteroData"):
        ShaDowKHopSampler(hetero, 2, 3)
