"""``loader.batch``: the batch of given seeds, outside of any epoch."""

import pytest
import torch
from helpers_pyg import check_batch, same
from torch_geometric.transforms import Constant

from manyhop.errors import InputError
from manyhop.loading.gpu import runtime
from manyhop_pyg import HGTLoader, LinkNeighborLoader, NeighborLoader, NeighborSampler, NodeLoader

WRITES = ("author", "writes", "paper")


def is_batch_of_epoch(batch, expected):
    """Whether a batch is that of an epoch, but for the positions of its seeds."""
    stores = zip(batch.stores, expected.stores, strict=True)
    return all(
        torch.equal(a[k], b[k]) if isinstance(b[k], torch.Tensor) else a[k] == b[k]
        for a, b in stores
        for k in b.keys()  # noqa: SIM118  # of PyG, no dictionary
        if k != "input_id"
    )


@pytest.mark.parametrize("options", [{"pad": "auto"}, {"filter_per_worker": False, "transform": Constant()}])
def test_the_batches_of_an_epoch(data, options):
    loader = NeighborLoader(data, [3, 2], batch_size=16, shuffle=True, seed=7, num_workers=2, **options)
    for i, expected in enumerate(loader):
        seeds = expected.n_id[: expected.input_id.numel()][expected.get("seed_mask", slice(None))]
        assert is_batch_of_epoch(loader.batch(seeds, key=(7, 0, i)), expected)
    assert loader.stats().batches == 4


def test_what_a_batch_has(data):
    loader = NeighborLoader(data, [3, 2], input_nodes=torch.arange(5), seed=7)
    batch = loader.batch([40, 40, 2])
    check_batch(batch, data)
    assert batch.n_id[:3].tolist() == [40, 40, 2]
    assert batch.batch_size == 3
    assert batch.input_id.tolist() == [0, 1, 2]
    assert loader.batch(torch.empty(0, dtype=torch.long)).num_nodes == 0


def test_times(data):
    loader = NeighborLoader(data, [3, 2], time_attr="time", input_time=data.time)
    batch = loader.batch([4, 5], input_time=torch.tensor([3, 9]))
    assert batch.seed_time.tolist() == [3, 9]
    assert same(loader.batch([4, 5], input_time=[3, 9]), batch)
    links = LinkNeighborLoader(data, [3], edge_label_index=data.edge_index, batch_size=8)
    assert links.batch([[1, 2], [3, 4]], edge_label=[0, 1]).edge_label.tolist() == [0, 1]
    assert (batch.time[batch.edge_index[0]] <= batch.seed_time[batch.batch[batch.edge_index[1]]]).all()
    with pytest.raises(InputError, match=r"Expected input_time as a tensor of integers or floats of shape \[2\]"):
        loader.batch([4, 5], input_time=torch.tensor([3]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"neg_sampling": "binary", "edge_label": torch.arange(300) % 3},
        {"neg_sampling": "triplet", "disjoint": True},
        {"neg_sampling": "binary", "exclude_seed_edges": "self"},
        {"neg_sampling": "binary", "time_attr": "time", "edge_label_time": torch.arange(300) % 20},
    ],
    ids=str,
)
def test_links(data, options):
    loader = LinkNeighborLoader(data, [3, 2], batch_size=40, shuffle=True, seed=7, **options)
    for i, expected in enumerate(loader):
        at = expected.input_id
        given = {k: v[at] for k, v in options.items() if k in ("edge_label", "edge_label_time")}
        assert is_batch_of_epoch(loader.batch(data.edge_index[:, at], key=(7, 0, i), **given), expected)


def test_types(hetero):
    nodes = NeighborLoader(hetero, [3, 2], "paper", batch_size=40, seed=7)
    assert same(nodes.batch(torch.arange(40)), next(iter(nodes)))
    hgt = HGTLoader(hetero, [5, 4], "author", batch_size=30, seed=7)
    assert same(hgt.batch(range(30)), next(iter(hgt)))
    links = LinkNeighborLoader(hetero, [3, 2], WRITES, batch_size=120, seed=7)
    assert same(links.batch(hetero[WRITES].edge_index), next(iter(links)))


def test_rows_are_checked_at_once(data, on_gpu, monkeypatch):
    """Nobody would ask later whether the rows of a batch outside of epochs are those of the data."""
    on_gpu()
    loader = NeighborLoader(data, [3, 2], batch_size=40)
    checked, gather = [], runtime.gather
    monkeypatch.setattr(runtime, "gather", lambda *a, checks, **b: [checked.append(checks), gather(*a, **b)][1])
    loader.batch([1, 2])
    assert checked == [None]
    assert len(list(loader)) == 2
    assert None not in checked[1:]


class Own(NodeLoader):
    def collate_fn(self, index):
        return super().collate_fn(index)


def test_what_cannot_be_done(data):
    links = LinkNeighborLoader(data, [3])
    with pytest.raises(InputError, match=r"Expected seeds of shape \[2, num_edges\], got \[2\]"):
        links.batch([1, 2])
    with pytest.raises(InputError, match="got a subclass that replaces it"):
        Own(data, NeighborSampler(data, [3])).batch([1])
