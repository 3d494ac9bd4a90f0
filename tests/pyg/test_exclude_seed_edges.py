"""LinkNeighborLoader without the edges that it asks a model to predict."""

import pytest
import torch
from helpers_pyg import all_same, check_batch, check_hetero_batch
from torch_geometric.sampler import NegativeSampling

from manyhop.errors import InputError
from manyhop_pyg import LinkLoader, LinkNeighborLoader, NeighborLoader, NeighborSampler

WRITES, WRITTEN = ("author", "writes", "paper"), ("paper", "rev_writes", "author")
CITES = ("paper", "cites", "paper")


def seen(index, seeds, n=60):
    """How many edges of ``index`` are among ``seeds``; both ``[2, n]`` global ids."""
    return int(torch.isin(index[0] * n + index[1], seeds[0] * n + seeds[1]).sum())


def global_edges(batch):
    return batch.n_id[batch.edge_index]


@pytest.mark.parametrize("mode", [None, "self", "reverse_id"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"neg_sampling": "binary"},
        {"neg_sampling": NegativeSampling("triplet", 2)},
        {"neg_sampling": "binary", "exclude_true_negatives": True},
        {"disjoint": True},
        {"subgraph_type": "induced"},
        {"replace": True},
        {"weight_attr": "edge_weight"},
        {"time_attr": "edge_time", "edge_label_time": torch.full((300,), 20)},
        {"num_neighbors": [-1]},
    ],
    ids=str,
)
def test_no_seed_edge_is_in_its_batch(data, mode, options):
    loader = LinkNeighborLoader(
        data, **{"num_neighbors": [9, 3], "batch_size": 20, "shuffle": True, "seed": 1, **options},
        exclude_seed_edges=mode,
    )  # fmt: skip
    found = back = 0
    for batch in loader:
        check_batch(batch, data)
        seeds = data.edge_index[:, batch.input_id]
        found += seen(global_edges(batch), seeds)
        back += seen(global_edges(batch), seeds.flip(0))
        assert batch.num_edges > 0
    assert (found == 0) == (mode is not None)
    assert (back == 0) == (mode == "reverse_id")


def test_pairs_are_found_wherever_they_come_from(data):
    """Copies of an edge, pairs in another order, and pairs that are no edges; negatives are drawn as without it."""
    data.edge_index[:, 7] = data.edge_index[:, 3]
    given = torch.cat([data.edge_index[:, [3, 90]], torch.tensor([[55], [56]])], 1)
    plain, without = (
        LinkNeighborLoader(data, [-1], given, neg_sampling="binary", batch_size=3, seed=1, exclude_seed_edges=mode)
        for mode in (None, "self")
    )
    (batch,), (other,) = list(without), list(plain)
    assert {3, 7, 90} <= set(other.e_id.tolist())
    assert not {3, 7, 90} & set(batch.e_id.tolist())
    assert torch.equal(batch.n_id[batch.edge_label_index], other.n_id[other.edge_label_index])


def test_reverses_by_id(data):
    index = data.edge_index.clone()
    data.edge_index = torch.cat([index, index.flip(0)], 1)
    del data.edge_attr, data.edge_weight, data.edge_time
    ids = torch.cat([torch.arange(300, 600), torch.arange(300)])
    given = {"batch_size": 20, "seed": 1, "exclude_seed_edges": "reverse_id"}
    for batch in LinkNeighborLoader(data, [9, 3], index, reverse_eids=ids, **given):
        assert seen(global_edges(batch), index[:, batch.input_id]) == 0
        assert not torch.isin(batch.e_id, ids[batch.input_id]).any()
    by_ends = LinkNeighborLoader(data, [9, 3], index, **given)
    assert all_same(list(by_ends), list(LinkNeighborLoader(data, [9, 3], index, reverse_eids=ids, **given)))


@pytest.mark.parametrize("given", [WRITES, "index"])
@pytest.mark.parametrize("mode", [None, "self", "reverse_types"])
def test_types(hetero, given, mode):
    index = hetero[WRITES].edge_index
    order = torch.randperm(120, generator=torch.Generator().manual_seed(1))
    hetero[WRITTEN].edge_index = index.flip(0)[:, order]  # ids of the reverse type may be others
    loader = LinkNeighborLoader(
        hetero, [9, 3], given if given is WRITES else (WRITES, index), neg_sampling="triplet", batch_size=9,
        exclude_seed_edges=mode, reverse_etypes={WRITES: WRITTEN} if mode == "reverse_types" else None,
    )  # fmt: skip
    found = back = 0
    for batch in loader:
        check_hetero_batch(batch, hetero)
        author, paper = batch["author"].n_id, batch["paper"].n_id
        seeds = index[:, batch[WRITES].input_id]
        src, dst = batch[WRITES].edge_index
        found += seen(torch.stack([author[src], paper[dst]]), seeds)
        src, dst = batch[WRITTEN].edge_index
        back += seen(torch.stack([paper[src], author[dst]]), seeds.flip(0))
    assert (found == 0) == (mode is not None)
    assert (back == 0) == (mode == "reverse_types")


def test_a_type_of_one_end_has_reverses_by_id(hetero):
    ids = torch.arange(150).flip(0)
    loader = LinkNeighborLoader(
        hetero, [9, 3], CITES, batch_size=9, exclude_seed_edges="reverse_id", reverse_eids={CITES: ids}
    )
    for batch in loader:
        assert not torch.isin(batch[CITES].e_id, ids[batch[CITES].input_id]).any()
        assert not torch.isin(batch[CITES].e_id, batch[CITES].input_id).any()


@pytest.mark.parametrize("how", ["self", "reverse_id"])
def test_seeds_of_a_type_without_edges(hetero, how):
    likes = ("author", "likes", "author")
    given = (likes, torch.tensor([[1, 2], [3, 4]]))
    plain, without = (
        list(LinkNeighborLoader(hetero, [3], given, batch_size=2, seed=1, exclude_seed_edges=mode))
        for mode in (None, how)
    )
    assert all_same(plain, without)


def test_types_against_the_edges(hetero):
    sampler = NeighborSampler(hetero, [9, 3], sample_direction="backward")
    how = {"exclude_seed_edges": "reverse_types", "reverse_etypes": {WRITES: WRITTEN}}
    for batch in LinkLoader(hetero, sampler, WRITES, batch_size=9, **how):
        seeds = hetero[WRITES].edge_index[:, batch[WRITES].input_id]
        src, dst = batch[WRITES].edge_index
        assert src.numel() > 0
        assert seen(torch.stack([batch["author"].n_id[src], batch["paper"].n_id[dst]]), seeds) == 0
        src, dst = batch[WRITTEN].edge_index
        assert seen(torch.stack([batch["paper"].n_id[src], batch["author"].n_id[dst]]), seeds.flip(0)) == 0


def test_bidirectional_subgraphs(data):
    with pytest.raises(InputError, match="adds the reverses"):
        LinkNeighborLoader(data, [9], subgraph_type="bidirectional", exclude_seed_edges="self")
    loader = LinkNeighborLoader(
        data, [9, 3], subgraph_type="bidirectional", batch_size=9, exclude_seed_edges="reverse_id"
    )
    for batch in loader:
        assert seen(global_edges(batch), data.edge_index[:, batch.input_id]) == 0


def test_loaders_of_nodes(data):
    with pytest.raises(TypeError, match="exclude_seed_edges"):
        NeighborLoader(data, [3], exclude_seed_edges="self")
