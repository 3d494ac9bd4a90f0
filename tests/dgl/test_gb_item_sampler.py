"""Item samplers: which items are in which minibatch, on one process and on several."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import manyhop_dgl.graphbolt as gb
from manyhop.errors import InputError


def items_of(batches):
    return [batch.tolist() for batch in batches]


def as_they_are(batch, names):
    return batch


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_item_once_per_epoch(drop_last, shuffle):
    numbers = torch.arange(100, 123)
    sampler = gb.ItemSampler(gb.ItemSet(numbers), 4, as_they_are, drop_last=drop_last, shuffle=shuffle, seed=3)
    epochs = [items_of(sampler) for _ in range(3)]
    for epoch in epochs:
        assert len(epoch) == len(sampler) == (5 if drop_last else 6)
        assert [len(batch) for batch in epoch] == [4] * 5 + [3] * (not drop_last)
        found = list(itertools.chain(*epoch))
        assert len(set(found)) == len(found)
        assert set(found) <= set(numbers.tolist())
        if not shuffle:
            assert found == numbers.tolist()[: len(found)]
    assert (epochs[0] != epochs[1]) == (epochs[1] != epochs[2]) == shuffle
    again = gb.ItemSampler(gb.ItemSet(numbers), 4, as_they_are, drop_last=drop_last, shuffle=shuffle, seed=3)
    assert [items_of(again) for _ in range(3)] == epochs


def test_items_become_minibatches():
    pairs, labels = torch.arange(20).view(-1, 2), torch.arange(10)
    sampler = gb.ItemSampler(gb.ItemSet((pairs, labels), names=("seeds", "labels")), 4, seed=5)
    first, second, _ = list(sampler)
    assert torch.equal(first.seeds, pairs[:4])
    assert torch.equal(second.labels, labels[4:8])
    assert first.key == (5, 0, 0)
    assert [batch.key for batch in sampler] == [(5, 1, b) for b in range(3)]
    old = gb.ItemSampler(gb.ItemSet((pairs, labels), names=("node_pairs", "labels")), 4)
    assert torch.equal(next(iter(old)).seeds, pairs[:4])
    assert torch.equal(next(iter(gb.ItemSampler(gb.ItemSet(5, names="seed_nodes"), 4))).seed_nodes, torch.arange(4))


def test_several_types_become_dictionaries():
    items = gb.HeteroItemSet(
        {
            "user:likes:item": gb.ItemSet((torch.arange(6).view(-1, 2), torch.arange(3)), names=("seeds", "labels")),
            "user:knows:user": gb.ItemSet((torch.arange(8).view(-1, 2), torch.arange(4)), names=("seeds", "labels")),
        }
    )
    first, second = list(gb.ItemSampler(items, 4))
    assert list(first.seeds) == list(first.labels) == ["user:likes:item", "user:knows:user"]
    assert first.seeds["user:knows:user"].tolist() == [[0, 1]]
    assert list(second.labels) == ["user:knows:user"]
    shuffled = gb.ItemSampler(items, 3, shuffle=True, seed=2)
    seen = [sum(len(labels) for labels in batch.labels.values()) for batch in shuffled]
    assert seen == [3, 3, 1]


def test_names_that_nobody_knows():
    with pytest.warns(gb.GBWarning, match="names of items are not provided"):
        assert torch.equal(next(iter(gb.ItemSampler(gb.ItemSet(4), 2))), torch.arange(2))
    with pytest.warns(gb.GBWarning, match="Unknown item name 'weather'"):
        batch = next(iter(gb.ItemSampler(gb.ItemSet(4, names="weather"), 2)))
    assert batch.weather.tolist() == [0, 1]


def test_arguments():
    with pytest.raises(InputError, match="batch_size"):
        gb.ItemSampler(gb.ItemSet(9), 0)
    with pytest.raises(InputError, match="Expected an ItemSet"):
        gb.ItemSampler(torch.arange(3), 2)
    with pytest.raises(InputError, match="process group"):
        gb.DistributedItemSampler(gb.ItemSet(9), 3)
    loader = TorchDataLoader(gb.ItemSampler(gb.ItemSet(9), 3, as_they_are), batch_size=None, num_workers=1)
    with pytest.raises(InputError, match="workers are threads"):
        list(loader)


@pytest.fixture
def ranks(monkeypatch):
    """Item samplers as they are on four ranks."""

    def make(rank, world_size, seed=0, **options):
        fake = SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: True,
            get_world_size=lambda: world_size,
            get_rank=lambda: rank,
        )
        monkeypatch.setattr(torch, "distributed", fake)
        return gb.DistributedItemSampler(gb.ItemSet(15), 2, as_they_are, seed=seed, **options)

    return make


@pytest.mark.parametrize(
    ("shuffle", "drop_last", "drop_uneven", "sizes"),
    [
        # the six examples that GraphBolt documents: 15 items, 4 ranks, 2 items per batch
        (False, False, False, [[2, 2], [2, 2], [2, 2], [2, 1]]),
        (False, True, False, [[2, 2], [2, 2], [2, 2], [2]]),
        (False, False, True, [[2, 2], [2, 2], [2, 2], [2, 1]]),
        (False, True, True, [[2], [2], [2], [2]]),
        (True, True, False, [[2, 2], [2, 2], [2, 2], [2]]),
        (True, True, True, [[2], [2], [2], [2]]),
    ],
)
def test_ranks_have_as_many_batches_as_in_graphbolt(ranks, shuffle, drop_last, drop_uneven, sizes):
    options = {"shuffle": shuffle, "drop_last": drop_last, "drop_uneven_inputs": drop_uneven}
    found = [items_of(ranks(rank, 4, **options)) for rank in range(4)]
    assert [[len(batch) for batch in batches] for batches in found] == sizes
    assert [len(ranks(rank, 4, **options)) for rank in range(4)] == [len(batches) for batches in sizes]
    together = [batch for some in itertools.zip_longest(*found) for batch in some if batch is not None]
    with pytest.raises(InputError, match="with a seed that all ranks share, got none"):
        list(ranks(0, 4, seed=None))
    alone = items_of(ranks(0, 1, shuffle=shuffle, drop_last=drop_last))
    assert together == alone[: len(together)]  # whatever the number of ranks


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "item_set",
    [
        gb.ItemSet(23, names="seeds"),
        gb.ItemSet((torch.arange(23), torch.arange(46).view(23, 2)), names=("labels", "seeds")),
        gb.HeteroItemSet({"a": gb.ItemSet(torch.arange(12), names="seeds"), "b": gb.ItemSet(11, names="seeds")}),
    ],
    ids=["numbers", "tensors", "types"],
)
def test_several_batches_at_once(item_set, shuffle):
    sampler = gb.ItemSampler(item_set, 4, shuffle=shuffle, seed=3)
    positions = [torch.from_numpy(sampler.plan.indices(0, number)) for number in range(6)]
    several = sampler.items_of_several(positions, torch.device("cpu"))
    batches = [sampler.dressed(items, (3, 0, number)) for number, items in enumerate(several)]
    expected = list(sampler)
    assert [repr(batch) for batch in batches] == [repr(batch) for batch in expected]
    assert [batch.key for batch in batches] == [batch.key for batch in expected]
