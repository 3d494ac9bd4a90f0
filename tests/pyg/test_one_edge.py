"""OneEdgePerNode: an epoch of a link loader has one edge of each node."""

import itertools

import pytest
import torch
from helpers_pyg import all_same

from manyhop.errors import InputError
from manyhop_pyg import LinkNeighborLoader, OneEdgePerNode


def make(data, **options):
    edges = data.edge_index
    sampler = OneEdgePerNode(edges[0], seed=4)
    return LinkNeighborLoader(
        data, [3], edges, sampler=sampler, neg_sampling="triplet", exclude_true_negatives=True, batch_size=7, seed=1,
        **options,
    )  # fmt: skip


def test_each_node_has_one_of_its_edges(data):
    loader, nodes = make(data, num_workers=2), data.edge_index[0].unique()
    edges = {(int(u), int(v)) for u, v in data.edge_index.t()}
    epochs = []
    for _ in range(2):
        ids = []
        for batch in loader:
            ids.append(batch.input_id)
            src, pos, neg = (batch.n_id[batch[name]] for name in ("src_index", "dst_pos_index", "dst_neg_index"))
            assert torch.equal(torch.stack([src, pos]), data.edge_index[:, batch.input_id])
            assert not {(int(u), int(v)) for u, v in zip(src, neg, strict=True)} & edges
        epochs.append(torch.cat(ids))
        assert torch.equal(data.edge_index[0, epochs[-1]].sort().values, nodes)
    assert len(loader.sampler) == nodes.numel()
    assert not torch.equal(*epochs)
    assert torch.equal(torch.tensor(list(OneEdgePerNode(data.edge_index[0], 4))), epochs[0])


def test_edges_of_a_node_are_drawn_equally_often():
    sampler = OneEdgePerNode(torch.tensor([5, 2, 5, 5]))
    count = torch.bincount(torch.tensor(list(itertools.chain.from_iterable(iter(sampler) for _ in range(3000)))))
    assert count[1] == 3000
    assert bool((count[[0, 2, 3]] - 1000).abs().max() < 110)  # four standard deviations


def test_restart(data):
    expected, loader = [list(epoch) for epoch in [make(data)] for _ in range(2)], make(data, num_workers=2)
    list(loader)
    first = list(itertools.islice(loader, 3))
    rest = make(data)
    rest.load_state_dict(loader.state_dict())
    assert all_same(first + list(rest), expected[1])
    assert not all_same(list(rest), expected[1])


@pytest.mark.parametrize(
    "nodes", ["ab", torch.zeros(2, 3).long(), torch.ones(3, dtype=torch.bool)], ids=["a", "b", "c"]
)
def test_wrong_nodes(nodes):
    with pytest.raises(InputError, match="Expected nodes as"):
        OneEdgePerNode(nodes)
