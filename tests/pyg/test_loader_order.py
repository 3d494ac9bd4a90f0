"""Order of batches, threads, epochs, resuming: what does not depend on what."""

import copy
import gc
import pickle
import threading
import time

import pytest
import torch
from helpers_pyg import all_same, check_batch, same
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler
from torch.utils.data.distributed import DistributedSampler
from torch_geometric.sampler import NodeSamplerInput

from manyhop.errors import InputError, StateError
from manyhop.loading.pipeline import BatchPlan
from manyhop.sampling import BatchKey, NodeRequest, ReferenceSampler
from manyhop_pyg import LinkNeighborLoader, NeighborLoader, NeighborSampler


def loader_of(data, **kwargs):
    return NeighborLoader(data, [3, 2], **{"batch_size": 8, "shuffle": True, "seed": 5, **kwargs})


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("manyhop-") and "gather" not in t.name]


def number_of_threads(expected):
    """Wait until as many are left: those of a loader that was dropped end by themselves."""
    end = time.monotonic() + 60
    while len(threads()) != expected and time.monotonic() < end:
        time.sleep(0.01)
    return len(threads())


@pytest.mark.parametrize("filter_per_worker", [True, False])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_threads_do_not_matter(data, workers, filter_per_worker):
    one = loader_of(data)
    expected = [*one, *one]
    other = loader_of(data, num_workers=workers, filter_per_worker=filter_per_worker, prefetch_factor=3)
    assert all_same(expected, [*other, *other])
    assert number_of_threads(0) == 0


def test_a_batch_is_a_function_of_seed_epoch_and_index(data):
    a, b = loader_of(data), loader_of(data)
    first, second = list(a), list(a)
    assert a.epoch == 1
    assert not all_same(first, second)
    assert all_same(first, list(b))
    assert all_same(second, list(b))
    assert not all_same(first, list(loader_of(data, seed=6)))
    assert sorted(torch.cat([x.input_id for x in first]).tolist()) == list(range(60))
    assert not same(first[0], loader_of(data, shuffle=False).__iter__().__next__())


def test_the_keys_are_those_of_the_contract(data):
    """The reference, asked for one batch, gives what the loader gave."""
    loader = loader_of(data, num_workers=2)
    sampler = loader.node_sampler
    reference = ReferenceSampler(sampler.topology.graph, sampler.spec)
    plan = BatchPlan(60, 8, shuffle=True, seed=5)
    for epoch in range(2):
        for i, batch in enumerate(loader):
            seeds = torch.from_numpy(plan.indices(epoch, i))
            sample = reference.sample(NodeRequest(key=BatchKey(5, epoch, i), seeds={"_N": seeds}))
            assert torch.equal(batch.n_id, sample.node["_N"])
            assert torch.equal(batch.e_id, sample.edge_id["_N", "_E", "_N"])


def test_a_sampler_called_from_a_transform(data):
    """It has keys of its own, which do not depend on where the transform runs."""
    sampler = NeighborSampler(data, [2])

    def transform(batch):
        batch.second = sampler.sample_from_nodes(NodeSamplerInput(None, batch.input_id)).edge
        return batch

    here = loader_of(data, transform=transform, filter_per_worker=False, num_workers=1)
    assert all_same(list(loader_of(data, transform=transform, num_workers=2)), list(here))


def test_without_shuffling_each_epoch_samples_anew(data):
    loader = loader_of(data, shuffle=False)
    first, second = list(loader), list(loader)
    assert all(torch.equal(x.input_id, y.input_id) for x, y in zip(first, second, strict=True))
    assert not all_same(first, second)


def test_drop_last(data):
    loader = loader_of(data, drop_last=True)
    assert len(loader) == 7
    assert [b.batch_size for b in loader] == [8] * 7


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


def test_distributed_sampler(data):
    sampler = DistributedSampler(range(60), num_replicas=2, rank=1, shuffle=True, seed=3)
    loader = NeighborLoader(data, [2], sampler=sampler, batch_size=10)
    epochs = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        epochs.append(torch.cat([b.input_id for b in loader]).tolist())
        assert epochs[-1] == list(sampler)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("received", [0, 3, 8])
def test_resume(data, workers, received):
    loader = loader_of(data, num_workers=workers)
    list(loader)
    epoch = iter(loader)
    for _ in range(received):
        next(epoch)
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == ((1, received) if received < 8 else (2, 0))
    rest, following = (list(epoch), list(loader)) if received < 8 else (list(loader), list(loader))
    again = loader_of(data, seed=None)
    again.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert again.seed == 5
    assert again.state_dict() == state
    assert all_same(list(again), rest)
    assert all_same(list(again), following)


@pytest.mark.parametrize("received", [1, 7, 8, 9, 16, 24])
def test_the_loader_counts_the_epochs_of_a_run(data, received):
    """As docs/scale/restart.md has it, also where the state is that after the last batch of an epoch."""

    def run(state=None):
        loader = loader_of(data)
        if state is not None:
            loader.load_state_dict(state)
        return [(loader.state_dict(), batch.n_id.tolist()) for _ in range(loader.epoch, 3) for batch in loader]

    whole = run()
    assert len(whole) == 24
    assert run(whole[received - 1][0]) == whole[received:]


def test_resume_links(data):
    def loader():
        return LinkNeighborLoader(data, [2], batch_size=30, shuffle=True, neg_sampling="binary", num_workers=2, seed=1)

    a, b = loader(), loader()
    epoch = iter(a)
    next(epoch)
    b.load_state_dict(a.state_dict())
    assert all_same(list(b), list(epoch))


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


def test_states_of_other_loaders_are_refused(data):
    state = loader_of(data).state_dict()
    for other in (dict(batch_size=9), dict(shuffle=False), dict(drop_last=True), dict(input_nodes=torch.arange(9))):
        with pytest.raises(StateError):
            loader_of(data, **other).load_state_dict(state)
    with pytest.raises(StateError):
        loader_of(data).load_state_dict({})


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
    loader = caught = None
    assert number_of_threads(0) == 0


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


@pytest.mark.parametrize("persistent", [False, True])
def test_leaving_early_leaves_nothing_behind(data, persistent):
    loader = loader_of(data, num_workers=2, persistent_workers=persistent)
    for _ in loader:
        break
    assert all_same(list(loader), list(loader_of(data))) is False  # the next epoch
    assert number_of_threads(2 * persistent) == 2 * persistent
    del loader, _
    gc.collect()
    assert number_of_threads(0) == 0


def test_two_iterators_at_once(data):
    loader = loader_of(data, num_workers=2, persistent_workers=True)
    expected = loader_of(data)
    first, second = list(expected), list(expected)
    a, b = iter(loader), iter(loader)
    pairs = [(next(a), next(b)) for _ in range(8)]
    assert all_same([x for x, _ in pairs], first)
    assert all_same([y for _, y in pairs], second)


@pytest.mark.parametrize("copied", [lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy])
def test_copies(data, copied):
    loader = loader_of(data, num_workers=2, persistent_workers=True)
    list(loader)
    other = copied(loader)
    assert other.stats().batches in (0, loader.stats().batches)
    second = list(other)
    assert other.epoch == 1
    assert all_same(second, list(loader))
    check_batch(second[0], data)


def test_buffers_are_not_used_again_while_someone_looks(data):
    data.x = torch.randn(60, 2000)  # large enough to be recycled
    loader = loader_of(data)
    kept = list(loader)
    for _ in range(3):
        list(loader)
    for batch in kept:
        check_batch(batch, data)


def test_stats_and_timeline(data, tmp_path):
    loader = loader_of(data, num_workers=2)
    edges = sum(b.num_edges for b in loader)
    report = loader.stats()
    assert (report.batches, report.seeds, report.edges) == (8, 60, edges)
    assert report.sample_s > 0
    assert report.gather_s > 0
    assert report.gathered_bytes > 0
    assert report.advice
    loader.timeline(tmp_path / "batches.json")
    assert (tmp_path / "batches.json").stat().st_size > 0
    before = loader.stats().seeds
    loader([1, 2])
    assert loader.stats().seeds == before


@pytest.mark.parametrize("is_sorted", [False, True])
def test_advice_names_attributes_of_unsorted_edges(data, is_sorted):
    loader = loader_of(data.sort(sort_by_row=False) if is_sorted else data)
    list(loader)
    loader._stats.record(0, "gather", 0.0, 1e6)
    loader._stats.waited(0, 0.0, 1e6)
    advice = loader.stats().advice
    assert ("gathering is the bottleneck" in advice, "sort the edges by destination" in advice) == (True, not is_sorted)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_stats_count_the_batches_received(data, num_workers):
    """Not those that were made ahead of a break, nor the first making of one that is made again."""
    loader = loader_of(data, num_workers=num_workers, prefetch_factor=4 if num_workers else None)
    size, received = loader.batch_size, []
    for _ in range(2):
        iterator = iter(loader)
        state = loader.state_dict()
        received += [next(iterator), next(iterator)]
        iterator.close()
        loader.load_state_dict(state)
    report = loader.stats()
    assert (report.batches, report.seeds) == (4, 4 * size)
    assert report.edges == sum(batch.num_edges for batch in received)
    assert report.nodes == sum(batch.num_nodes for batch in received)
    rows = [name for name, value in data.to_dict().items() if isinstance(value, torch.Tensor) and name != "edge_index"]
    assert report.gathered_bytes == sum(batch[name].nbytes for batch in received for name in rows)
    edges = sum(b.num_edges for b in loader)
    of_epoch = loader.stats(since="epoch")
    assert (of_epoch.batches, of_epoch.seeds, of_epoch.edges) == (8, 60, edges)
    assert copy.deepcopy(loader).stats(since="epoch").batches == 0
    for wrong in ("batch", 3, {}):
        with pytest.raises(InputError, match=f'since="epoch" or an earlier report, got {wrong!r}'):
            loader.stats(since=wrong)


@pytest.mark.parametrize("workers", [0, 2])
def test_several_threads_share_one_iterator(data, workers):
    loader = loader_of(data, num_workers=workers, batch_size=2)
    iterator, parts = iter(loader), [[] for _ in range(3)]
    consumers = [threading.Thread(target=part.extend, args=(iterator,), daemon=True) for part in parts]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(60)
        assert not consumer.is_alive(), "it still waits for a batch"
    assert sorted(i for part in parts for batch in part for i in batch.input_id.tolist()) == list(range(60))
    assert loader.state_dict() == {**loader.state_dict(), "epoch": 1, "batch": 0}
    assert number_of_threads(0) == 0
