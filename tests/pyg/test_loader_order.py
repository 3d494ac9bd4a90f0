"""Order of batches, threads, epochs, resuming: what does not depend on what."""

import itertools

import pytest
import torch
from helpers_pyg import all_same
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler
from torch.utils.data.distributed import DistributedSampler
from torch_geometric.sampler import NodeSamplerInput

from manyhop.errors import InputError
from manyhop_pyg import NeighborLoader, NeighborSampler


def loader_of(data, **kwargs):
    return NeighborLoader(data, [3, 2], **{"batch_size": 8, "shuffle": True, "seed": 5, **kwargs})


def test_a_sampler_called_from_a_transform(data):
    """It has keys of its own, which do not depend on where the transform runs."""
    sampler = NeighborSampler(data, [2])

    def transform(batch):
        batch.second = sampler.sample_from_nodes(NodeSamplerInput(None, batch.input_id)).edge
        return batch

    here = loader_of(data, transform=transform, filter_per_worker=False, num_workers=1)
    assert all_same(list(loader_of(data, transform=transform, num_workers=2)), list(here))


@pytest.mark.parametrize("workers", [0, 2])
def test_samplers_of_the_user(data, workers):
    def ids(**kwargs):
        loader = NeighborLoader(data, [2], seed=1, num_workers=workers, **kwargs)
        return [b.input_id.tolist() for b in loader]

    assert ids(batch_sampler=[[3, 1], [2], [5, 5, 5]]) == [[3, 1], [2], [5, 5, 5]]
    assert ids(sampler=[9, 8, 7, 6, 5], batch_size=2) == [[9, 8], [7, 6], [5]]
    assert ids(sampler=[9, 8, 7, 6, 5], batch_size=2, drop_last=True) == [[9, 8], [7, 6]]
    torch.manual_seed(1)
    expected = list(BatchSampler(RandomSampler(range(60)), 7, False))
    torch.manual_seed(1)
    assert ids(sampler=RandomSampler(range(60)), batch_size=7) == expected
    assert sorted(ids(sampler=SubsetRandomSampler([4, 5, 6]), batch_size=3)[0]) == [4, 5, 6]
    assert ids(batch_sampler=BatchSampler(range(5), 2, False)) == [[0, 1], [2, 3], [4]]


def test_subclasses_may_replace_the_iterator(data):
    class Twice(NeighborLoader):
        def _get_iterator(self):
            return itertools.chain(super()._get_iterator(), super()._get_iterator())

    assert len(list(Twice(data, [2], batch_size=60))) == 2


def test_distributed_sampler(data):
    sampler = DistributedSampler(range(60), num_replicas=2, rank=1, shuffle=True, seed=3)
    loader = NeighborLoader(data, [2], sampler=sampler, batch_size=10)
    epochs = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        epochs.append(torch.cat([b.input_id for b in loader]).tolist())
        assert epochs[-1] == list(sampler)
    assert epochs[0] != epochs[1]


class Counting:
    """A sampler that saves where it is."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < 20:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def __len__(self):
        return 20

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stateful", [True, False])
def test_resume_with_a_sampler_of_the_user(data, workers, stateful):
    def make():
        sampler = Counting() if stateful else list(range(20))
        return NeighborLoader(data, [2], sampler=sampler, batch_size=3, num_workers=workers, seed=1)

    a, b = make(), make()
    start = a.state_dict()
    epoch = iter(a)
    assert a.state_dict() == start
    next(epoch), next(epoch)
    state = a.state_dict()
    assert ("sampler" in state) == stateful
    assert state.get("sampler", {"at": 6}) == {"at": 6}
    b.load_state_dict(state)
    assert all_same(list(b), list(epoch))


def test_a_sampler_that_draws_is_iterated_anew_after_its_draws_are_repeated(data):
    """The user repeats what came before the epoch: the order is the same again."""

    def make():
        torch.manual_seed(6)
        return NeighborLoader(data, [2], sampler=RandomSampler(range(60)), batch_size=16)

    loader = make()
    epoch = iter(loader)
    next(epoch)
    state, other = loader.state_dict(), make()
    rest = list(epoch)
    other = make()
    other.load_state_dict(state)
    assert all_same(list(other), rest)


class MyStopError(Exception):
    """A user's."""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("where", ["transform", "transform_sampler_output", "sampler", "caller"])
def test_an_error_is_the_users_and_names_its_batch(data, workers, where):
    seen = []

    def fail(made):
        input_id = made.metadata[0] if hasattr(made, "metadata") else made.input_id
        if 17 in input_id:
            seen.append(made.n_id if hasattr(made, "n_id") else made.node)
            raise MyStopError("seventeen")
        return made

    class Failing(NeighborSampler):
        def sample_from_nodes(self, index):
            return fail(super().sample_from_nodes(index))

    how = {"transform": fail} if where == "caller" else {} if where == "sampler" else {where: fail}
    if where == "sampler":
        how["neighbor_sampler"] = Failing(data, [3, 2])
    loader = loader_of(data, num_workers=workers, shuffle=False, filter_per_worker=where != "caller", seed=None, **how)
    received = []
    with pytest.raises(MyStopError, match="seventeen") as caught:
        received.extend(loader)
    assert len(received) == 2
    assert caught.value.failed_batch == (0, 2)
    assert caught.traceback[-1].name == "fail"
    (note,) = caught.value.__notes__
    again, found = note.removeprefix("manyhop: while making batch 2 of epoch 0; to make it again: "), seen.pop(0)
    seen.clear()
    with pytest.raises(MyStopError):
        exec(again, {"loader": loader})
    assert torch.equal(seen[0], found)


@pytest.mark.parametrize("seed", [7, None])
def test_replay_makes_a_batch_again(data, seed):
    loader = loader_of(data, seed=seed, num_workers=1)
    epochs, before = [list(loader), list(loader)], loader.state_dict()
    assert all_same([loader.replay(1, 2), loader.replay(1, 0)], [epochs[1][2], epochs[1][0]])
    assert (loader.state_dict(), loader.stats().batches) == (before, 2 * len(loader))
    if seed is None:
        with pytest.raises(InputError, match=r"latest epoch of a loader without a seed, got 0\. Pass seed="):
            loader.replay(0, 2)
    else:
        assert all_same([loader.replay(0, 2)], [epochs[0][2]])
    with pytest.raises(InputError, match=str(len(loader))):
        loader.replay(1, len(loader))
    with pytest.raises(InputError, match="cuts its own batches, got one over a sampler"):
        NeighborLoader(data, [2], sampler=[5, 7]).replay(0, 0)


@pytest.mark.parametrize("is_sorted", [False, True])
def test_advice_names_attributes_of_unsorted_edges(data, is_sorted):
    loader = loader_of(data.sort(sort_by_row=False) if is_sorted else data)
    list(loader)
    loader._stats.record(0, "gather", 0.0, 1e6)
    loader._stats.waited(0, 0.0, 1e6)
    advice = loader.stats().advice
    assert ("gathering is the bottleneck" in advice, "sort the edges by destination" in advice) == (True, not is_sorted)
