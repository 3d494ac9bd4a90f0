"""ShaDowKHopSampler: a graph per seed, as PyG's."""

import pytest
import torch
import torch_geometric.loader
import torch_geometric.typing
from torch_geometric.data import Batch
from torch_geometric.utils import k_hop_subgraph

from manyhop.errors import InputError
from manyhop_pyg import ShaDowKHopSampler

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
def test_as_pyg(data):
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
def test_wrong_arguments(data, arguments, message):
    with pytest.raises(InputError, match=message):
        ShaDowKHopSampler(data, **{"depth": 2, "num_neighbors": 3} | arguments)


def test_typed_data_has_other_loaders(hetero):
    with pytest.raises(InputError, match="got HeteroData"):
        ShaDowKHopSampler(hetero, 2, 3)
