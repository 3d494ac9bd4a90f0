"""Ranks that share global batches get those of the one-process run, bit for bit."""

import pytest
import torch
from rank_loaders import LOADERS, digest, homogeneous, one_process, padding

import manyhop
from manyhop.errors import InputError


def share_batches(names, epochs, kwargs):
    """Per loader, per epoch: digest and padding of each batch, length, final figures."""
    out = {}
    for name in names:
        loader = LOADERS[name](distributed=True, seed=5, **kwargs)
        out[name] = [[(digest(batch), padding(batch)) for batch in loader] for _ in range(epochs)], len(loader)
    return out


def check_shared(seen, name, epochs=1, uneven="pad"):
    expected = one_process(name, epochs)
    for epoch in range(epochs):
        ranks = [rank[name][0][epoch] for rank in seen]
        b, w = len(expected[epoch]), len(ranks)
        rounds = b // w if uneven == "drop" else -(-b // w)
        assert [len(r) for r in ranks] == [rounds] * w == [rank[name][1] for rank in seen]
        dealt = [ranks[i % w][i // w] for i in range(rounds * w)]
        assert dealt == [(expected[epoch][i % b], i >= b) for i in range(rounds * w)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_all_loaders(launcher, world_size):
    seen = launcher.run(share_batches, list(LOADERS), 2, {}, world_size=world_size)
    for name in LOADERS:
        check_shared(seen, name, epochs=2)


HOW = [
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 1, "filter_per_worker": False},
    {"filter_per_worker": False, "uneven": "pad"},
    {"num_workers": 3, "uneven": "drop"},
]


def share_in_several_ways():
    return [share_batches(["homogeneous", "binary"], 2, kwargs) for kwargs in HOW]


def test_arguments_that_do_not_change_batches(launcher):
    ranks = launcher.run(share_in_several_ways, world_size=3)
    for i, kwargs in enumerate(HOW):
        for name in ("homogeneous", "binary"):
            check_shared([seen[i] for seen in ranks], name, epochs=2, uneven=kwargs.get("uneven", "pad"))


def test_a_process_that_stands_alone():
    for name in LOADERS:
        check_shared([share_batches([name], 2, {})], name, epochs=2)
    loader = homogeneous(distributed=True, seed=5)
    assert not loader([1, 2, 3]).is_padding.any()
    assert "is_padding" not in homogeneous(seed=5)([1, 2])


def count_seeds():
    """What metrics need: every seed counted once."""
    loader = homogeneous(distributed=True, seed=5)
    ids = [batch.input_id[~batch.is_padding] for batch in loader]
    report = loader.stats()
    return torch.cat(ids).tolist(), report.batches, max(i.batch for i in loader._stats.intervals())


def test_padding_can_be_left_out(launcher):
    seen = launcher.run(count_seeds, world_size=3)
    assert sorted(i for ids, *_ in seen for i in ids) == list(range(61))
    assert [batches for _, batches, _ in seen] == [3, 3, 3]
    assert [last for *_, last in seen] == [6, 7, 5], "figures go by global batches"


def use_no_seed():
    torch.manual_seed(manyhop.init().rank + 1)
    loader = homogeneous(distributed=True)
    return loader.seed, [digest(batch) for batch in loader]


def test_without_a_seed_rank_0_draws_it(launcher):
    (seed, first), (other, second) = launcher.run(use_no_seed)
    assert seed == other
    torch.manual_seed(1)
    loader = homogeneous(seed=int(torch.empty((), dtype=torch.int64).random_()))
    assert loader.seed == seed
    expected = [digest(batch) for batch in loader]
    assert [first[0], second[0], first[1]] == expected[:3]


def refuse_uneven():
    try:
        homogeneous(distributed=True, uneven="error")
    except InputError as error:
        return str(error)


def test_uneven_batches_may_be_an_error(launcher):
    messages = launcher.run(refuse_uneven, world_size=3)
    assert all("3 ranks can share evenly" in m for m in messages)
    assert launcher.run(refuse_uneven, world_size=2) == [None, None]
