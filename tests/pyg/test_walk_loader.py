"""Loaders of Node2Vec and MetaPath2Vec: batches are functions of seed, epoch and number, however they are made."""

import itertools
import pickle
from collections import Counter

import pytest
import torch
from torch.utils.data import DataLoader

from manyhop.errors import InputError, StateError
from manyhop_pyg import MetaPath2Vec, Node2Vec

N = 23
EDGES = torch.randint(0, N, (2, 150), generator=torch.Generator().manual_seed(1))
TO, BY = ("a", "to", "b"), ("b", "by", "a")
SIZES = {"a": N, "b": 11}


def node2vec(**kwargs):
    return Node2Vec(EDGES, 4, 6, 3, walks_per_node=2, p=0.5, num_negative_samples=3, num_nodes=N, **kwargs)


def metapath2vec():
    edges = {TO: torch.stack([EDGES[0], EDGES[1] % 11]), BY: torch.stack([EDGES[0] % 11, EDGES[1]])}
    return MetaPath2Vec(edges, 4, [TO, BY], 5, 3, walks_per_node=2, num_negative_samples=3, num_nodes_dict=SIZES)


MAKES = [node2vec, metapath2vec]


def epochs(loader, count=2):
    return [[(pos.tolist(), neg.tolist()) for pos, neg in loader] for _ in range(count)]


@pytest.mark.parametrize("make", MAKES)
def test_the_same_for_any_number_of_threads(make):
    model = make()
    expected = epochs(model.loader(batch_size=4, shuffle=True, seed=7))
    assert expected[0] != expected[1]
    assert expected != epochs(model.loader(batch_size=4, shuffle=True, seed=8))
    for kwargs in ({"num_workers": 1}, {"num_workers": 3, "persistent_workers": True, "prefetch_factor": 1}):
        assert epochs(model.loader(batch_size=4, shuffle=True, seed=7, **kwargs)) == expected
    assert epochs(make().loader(batch_size=4, shuffle=True, seed=7)) == expected
    assert epochs(pickle.loads(pickle.dumps(model.loader(batch_size=4, shuffle=True, seed=7)))) == expected


@pytest.mark.parametrize("make", MAKES)
def test_shapes_and_starts(make):
    """PyG's: the windows of walks, and of three times as many negatives, each first window from a start."""
    model = make()
    loader = model.loader(batch_size=10)
    assert isinstance(loader, DataLoader)
    assert len(loader) == len(list(loader)) == 3
    for number, (pos, neg) in enumerate(loader):
        starts = torch.arange(10 * number, min(10 * number + 10, N))
        assert pos.shape == (4 * 2 * len(starts), 3)
        assert neg.shape == (3 * len(pos), 3)
        assert torch.equal(pos[: 2 * len(starts), 0], starts.repeat(2))
        assert torch.equal(neg[: 6 * len(starts), 0], starts.repeat(6))
    assert [len(model.loader(batch_size=10, drop_last=last)) for last in (True, False)] == [2, 3]
    model.loss(pos, neg).backward()


def test_batches_that_are_larger_than_a_block_of_positions():
    model = node2vec()
    whole, more = (epochs(model.loader(batch_size=size, shuffle=True, seed=7)) for size in (N, 1 << 15))
    assert whole == more


@pytest.mark.parametrize("make", MAKES)
def test_one_batch_again(make):
    model = make()
    loader = model.loader(batch_size=4, seed=7)
    _, epoch = epochs(loader)
    for number, expected in enumerate(epoch):
        starts = list(range(4 * number, min(4 * number + 4, N)))
        pos, neg = model.loader(batch_size=1).batch(starts, key=(7, 1, number))
        assert (pos.tolist(), neg.tolist()) == expected
    assert all(map(torch.equal, loader.batch([3, 4]), loader.batch(torch.tensor([3, 4]), key=(7, 0, 0))))
    with pytest.raises(InputError, match=r"\[0, 23\), got 23"):
        loader.batch([23])


@pytest.mark.parametrize("kwargs", [{"seed": 7}, {}, {"num_workers": 2}])
@pytest.mark.parametrize("make", MAKES)
def test_resume_in_mid_epoch(make, kwargs):
    torch.manual_seed(4)
    loader, seen, states = make().loader(batch_size=4, shuffle=True, **kwargs), [], []
    for pos, neg in loader:
        states.append(loader.state_dict())
        seen.append((pos.tolist(), neg.tolist()))
    for done, state in enumerate(states, 1):
        again = make().loader(batch_size=4, shuffle=True, **kwargs)
        again.load_state_dict(pickle.loads(pickle.dumps(state)))
        if done < len(states):
            assert epochs(again, 1)[0] == seen[done:]
        else:
            assert (again.epoch, len(epochs(again, 1)[0])) == (1, len(seen))


def test_states_of_other_models_are_refused():
    state = node2vec().loader(batch_size=4).state_dict()
    longer = node2vec()
    longer.walks_per_node = 3
    for loader, message in [
        (metapath2vec().loader(batch_size=4), "specification of the walks"),
        (longer.loader(batch_size=4), "walks_per_node: 3"),
        (node2vec().loader(batch_size=5), "batch_size=5"),
    ]:
        with pytest.raises(StateError, match=message):
            loader.load_state_dict(state)


def test_attributes_may_be_set():
    """As in PyG, also while there is a loader."""
    model = node2vec()
    loader = model.loader(batch_size=4, seed=1)
    model.walk_length, model.context_size = 8, 5
    pos, neg = next(iter(loader))
    assert (pos.shape, neg.shape) == ((5 * 8, 5), (5 * 24, 5))


def test_figures():
    loader = node2vec().loader(batch_size=4, num_workers=2)
    windows = sum(pos.numel() + neg.numel() for pos, neg in loader)
    report = loader.stats()
    assert (report.batches, report.seeds, report.nodes, report.edges) == (6, N, windows, N * 2 * 5)
    assert report.sample_s > 0
    assert loader.placement == "cpu: topology and features are read in place"
    assert repr(loader) == f"WalkLoader({N} seeds, batch size 4, 6 batches, cpu: 2 threads)"


def test_what_torch_takes():
    model, called = node2vec(), []
    own = model.loader(batch_size=3, sampler=[5, 5, 7, 1], seed=2)
    assert [pos[:2, 0].tolist() for pos, _ in own] == [[5, 5], [1, 1]]
    batches = model.loader(batch_sampler=[[1], [2, 3]], num_workers=1, worker_init_fn=called.append)
    assert [len(pos) for pos, _ in batches] == [8, 16]
    assert called == [0]
    assert len(list(model.loader(batch_size=9, num_workers=1, multiprocessing_context="spawn"))) == 3
    for kwargs, message in [
        ({"sampler": [N]}, r"\[0, 23\), got 23"),
        ({"uneven": "drop"}, "uneven only with distributed=True"),
        ({"seed": 0.5}, "seed"),
    ]:
        with pytest.raises(InputError, match=message):
            list(model.loader(**kwargs))
    with pytest.raises(TypeError, match="placement"):
        model.loader(placement="auto")
    if torch.cuda.is_available():
        assert all(part.is_pinned() for part in next(iter(model.loader(pin_memory=True))))
    else:
        with pytest.warns(UserWarning, match="not pinned"):
            list(model.loader(pin_memory=True, batch_size=20))


def test_a_node_type_to_draw_from():
    edges = {TO: torch.zeros(2, 0, dtype=torch.int64)}
    with pytest.raises(InputError, match="node type without"):
        MetaPath2Vec(edges, 4, [TO], 1, 2, num_nodes_dict={"a": 3, "b": 0})


def test_windows_of_negatives_are_of_their_types():
    model = metapath2vec()
    model.context_size = 6  # whole walks
    walks = torch.cat([neg for _, neg in model.loader(batch_size=7, seed=3)])
    begin = torch.tensor([model.start[t] for t in "ababab"])
    size = torch.tensor([SIZES[t] for t in "ababab"])
    assert bool(((walks >= begin) & (walks < begin + size)).all())
    counts = Counter(itertools.chain.from_iterable(walks[:, 1::2].tolist()))
    assert len(counts) == 11, "all nodes are drawn"
