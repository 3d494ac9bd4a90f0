"""RandomNodeLoader: parts of the nodes with the edges inside, as PyG's."""

import pytest
import torch
import torch_geometric.loader
from helpers_pyg import all_same, check_batch, check_hetero_batch, stores_of

from manyhop.errors import InputError
from manyhop_pyg import RandomNodeLoader


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
