"""LinkNeighborLoader and LinkLoader."""

import pytest
import torch
import torch_geometric.loader
from helpers_pyg import all_same, check_batch, check_hetero_batch
from torch_geometric.sampler import NegativeSampling

from manyhop_pyg import LinkLoader, LinkNeighborLoader, NeighborSampler

WRITES = ("author", "writes", "paper")


def pairs(batch, name="edge_label_index"):
    """Global ids of the seed edges of a homogeneous batch."""
    return batch.n_id[batch[name]]


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("amount", [0.5, 1, 2])
def test_binary(data, disjoint, amount):
    loader = LinkNeighborLoader(
        data, [3, 2], batch_size=9, shuffle=True, neg_sampling=dict(mode="binary", amount=amount), disjoint=disjoint
    )
    assert isinstance(loader, torch_geometric.loader.LinkNeighborLoader)
    assert loader.dataset == range(300)
    for batch in loader:
        check_batch(batch, data)
        assert "batch_size" not in batch
        p = batch.input_id.numel()
        n = -int(-p * amount // 1)
        assert batch.edge_label_index.shape == (2, p + n)
        assert batch.edge_label.dtype == torch.float32
        assert batch.edge_label.tolist() == [1.0] * p + [0.0] * n
        assert torch.equal(pairs(batch)[:, :p], data.edge_index[:, batch.input_id])
        seeds = batch.n_id[: batch.num_sampled_nodes[0]]
        if disjoint:
            assert torch.equal(batch.edge_label_index, torch.arange(2 * (p + n)).view(2, -1))
            tree = torch.arange(p + n) % p
            assert torch.equal(batch.batch[batch.edge_label_index], torch.stack([tree, tree]))
        else:
            assert torch.equal(seeds, pairs(batch).unique())


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("amount", [1, 3])
def test_triplet(data, disjoint, amount):
    data.edge_label_index = torch.zeros(2, 3, dtype=torch.long)
    data.edge_label_time = torch.zeros(3)
    for batch in LinkNeighborLoader(
        data, [3, 2], data.edge_index, batch_size=9, neg_sampling=NegativeSampling("triplet", amount), disjoint=disjoint
    ):
        check_batch(batch, data)
        p = batch.input_id.numel()
        assert batch.src_index.shape == batch.dst_pos_index.shape == (p,)
        assert batch.dst_neg_index.shape == ((p,) if amount == 1 else (p, amount))
        positive = torch.stack([batch.n_id[batch.src_index], batch.n_id[batch.dst_pos_index]])
        assert torch.equal(positive, data.edge_index[:, batch.input_id])
        for name in ("edge_label_index", "edge_label_time", "edge_label", "seed_time", "batch_size"):
            assert name not in batch
        if disjoint:
            trees = batch.batch[batch.dst_neg_index].view(p, -1)
            assert torch.equal(trees, torch.arange(p).view(-1, 1).expand(-1, amount))


def test_without_negatives(data):
    labels = torch.arange(300) % 5
    loader = LinkNeighborLoader(data, [3], edge_label=labels, batch_size=9)
    batch = next(iter(loader))
    assert torch.equal(batch.edge_label, labels[:9])
    assert torch.equal(pairs(batch), data.edge_index[:, :9])
    assert "edge_label" not in next(iter(LinkNeighborLoader(data, [3], batch_size=9)))


def test_labels_make_room_for_negatives(data):
    for low, rises in ((0, 1), (1, 0)):
        labels = torch.arange(300) % 4 + low
        loader = LinkNeighborLoader(data, [3], edge_label=labels, neg_sampling_ratio=1.0, batch_size=2, seed=0)
        epoch = list(loader)
        assert all(torch.equal(b.edge_label[:2], labels[b.input_id] + rises) for b in epoch)
        assert all((b.edge_label[2:] == 0).all() for b in epoch)
        assert epoch[0].edge_label.dtype == torch.int64
        assert loader.edge_label is labels


def test_given_pairs_and_input_ids(data):
    index = torch.tensor([[1, 50, 1], [2, 51, 2]])
    batch = next(iter(LinkNeighborLoader(data, [3], index, batch_size=3)))
    assert torch.equal(pairs(batch), index)
    assert torch.equal(batch.n_id[:4], torch.tensor([1, 2, 50, 51]))
    sampler = NeighborSampler(data, [3])
    batch = next(iter(LinkLoader(data, sampler, index, input_id=torch.tensor([7, 8, 9]), batch_size=2)))
    assert batch.input_id.tolist() == [7, 8]


def test_negatives_that_are_no_edges(data):
    edges = set(zip(*data.edge_index.tolist(), strict=True))
    hits = 0
    for exclude in (False, True):
        loader = LinkNeighborLoader(data, [1], neg_sampling="binary", batch_size=50, exclude_true_negatives=exclude)
        negatives = [p for b in loader for p in zip(*pairs(b)[:, b.edge_label == 0].tolist(), strict=True)]
        hits = sum(p in edges for p in negatives)
        assert (hits == 0) == exclude
    for batch in LinkNeighborLoader(data, [1], neg_sampling="triplet", batch_size=50, exclude_true_negatives=True):
        drawn = zip(batch.n_id[batch.src_index].tolist(), batch.n_id[batch.dst_neg_index].tolist(), strict=True)
        assert not any(p in edges for p in drawn)


def test_weighted_negatives(data):
    weight = torch.zeros(60)
    weight[[4, 8]] = 1.0
    neg = NegativeSampling("binary", 1, src_weight=weight, dst_weight=1 - weight)
    for batch in LinkNeighborLoader(data, [1], neg_sampling=neg, batch_size=50):
        src, dst = pairs(batch)[:, batch.edge_label == 0]
        assert set(src.tolist()) <= {4, 8}
        assert not set(dst.tolist()) & {4, 8}


def test_a_weight_of_sources_has_no_effect_on_triplets(data):
    dst_weight = torch.rand(60)
    plain = NegativeSampling("triplet", 2, dst_weight=dst_weight)
    weighted = NegativeSampling("triplet", 2, src_weight=torch.rand(60), dst_weight=dst_weight)
    expected = list(LinkNeighborLoader(data, [2], neg_sampling=plain, batch_size=60, seed=3))
    with pytest.warns(UserWarning, match="src_weight has no effect with triplets"):
        loader = LinkNeighborLoader(data, [2], neg_sampling=weighted, batch_size=60, seed=3)
    assert all_same(list(loader), expected)


@pytest.mark.parametrize("mode", [None, "binary", "triplet"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_times(data, mode, dtype):
    data.time = data.time.to(dtype)
    data.time[:5] = 0
    times = torch.randint(0, 20, (300,)).to(dtype)
    loader = LinkNeighborLoader(
        data, [3, 2], edge_label_time=times, time_attr="time", neg_sampling=mode, batch_size=9, shuffle=True
    )
    for batch in loader:
        check_batch(batch, data)
        p = batch.input_id.numel()
        mine = times[batch.input_id]
        src, dst = batch.edge_index
        assert (batch.time[src] <= mine[batch.batch[dst]]).all()
        if mode == "triplet":
            assert torch.equal(batch.seed_time, mine)
            assert (batch.time[batch.dst_neg_index] <= mine).all()
        else:
            assert torch.equal(batch.edge_label_time, mine.repeat(2)[: batch.edge_label_index.size(1)])
            if mode == "binary":
                assert (batch.time[batch.edge_label_index[:, p:]] <= mine).all()


@pytest.mark.parametrize("mode", ["binary", "triplet"])
@pytest.mark.parametrize("disjoint", [False, True])
def test_two_node_types(hetero, mode, disjoint):
    index = hetero[WRITES].edge_index
    loader = LinkNeighborLoader(
        hetero, [3, 2], WRITES, batch_size=9, shuffle=True, neg_sampling=dict(mode=mode, amount=2), disjoint=disjoint
    )
    for batch in loader:
        check_hetero_batch(batch, hetero)
        store, author, paper = batch[WRITES], batch["author"], batch["paper"]
        p = store.input_id.numel()
        if mode == "binary":
            src, dst = store.edge_label_index
            assert store.edge_label.tolist() == [1.0] * p + [0.0] * 2 * p
            trees = torch.arange(3 * p) % p
        else:
            src, dst = author.src_index, paper.dst_pos_index
            assert paper.dst_neg_index.shape == (p, 2)
            assert "edge_label_index" not in store
            trees = torch.arange(p)
        assert torch.equal(torch.stack([author.n_id[src[:p]], paper.n_id[dst[:p]]]), index[:, store.input_id])
        if disjoint:
            assert torch.equal(author.batch[src], trees)
            assert torch.equal(paper.batch[dst], trees)
        else:
            seeds = author.n_id[: author.num_sampled_nodes[0]]
            assert torch.equal(seeds, author.n_id[src].unique())


def test_times_of_two_types(hetero):
    hetero["paper"].time = torch.arange(40) % 7
    times = torch.arange(120) % 7
    loader = LinkNeighborLoader(
        hetero, [3], WRITES, edge_label_time=times, time_attr="time", neg_sampling="triplet", batch_size=9
    )
    for batch in loader:
        mine = times[batch[WRITES].input_id]
        assert torch.equal(batch["author"].seed_time, mine)
        assert torch.equal(batch["paper"].seed_time, mine)


def test_edge_type_that_has_no_edges_in_the_graph(hetero):
    likes = ("author", "likes", "field")
    index = torch.tensor([[1, 2], [3, 4]])
    batch = next(iter(LinkNeighborLoader(hetero, [3], (likes, index), neg_sampling="binary", batch_size=2)))
    found = batch[likes].edge_label_index
    assert torch.equal(batch["author"].n_id[found[0, :2]], index[0])
    assert torch.equal(batch["field"].n_id[found[1, :2]], index[1])
