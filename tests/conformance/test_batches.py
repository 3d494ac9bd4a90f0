"""What is in batches and in which order they come, whatever makes them."""

import copy
import gc
import os
import pickle
import threading

import pytest
import torch
from harness import EDGES, NUM_NODES, SEEDS, X
from pipeline_threads import ours, wait_until

from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, build_graph
from manyhop.loading.pipeline import BatchPlan
from manyhop.sampling import BatchKey, NeighborSpec, NodeRequest, ReferenceSampler


def ended(before):
    """Wait for the threads of loaders that were dropped or are done."""
    return wait_until(lambda: set(ours()) <= set(before))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_those_of_the_reference(harness, num_workers):
    """The keys are those of the contract, in the order of the plan; rows are those of the graph."""
    graph = build_graph({HOMOGENEOUS_NODE: NUM_NODES}, {HOMOGENEOUS_EDGE: EdgeInput(row=EDGES[0], col=EDGES[1])})
    reference = ReferenceSampler(graph, NeighborSpec(fanouts={HOMOGENEOUS_EDGE: (3,)}))
    plan = BatchPlan(len(SEEDS), 8, shuffle=True, seed=3)
    loader = harness.loader(fanouts=[3], num_workers=num_workers)
    assert len(loader) == 7
    for epoch in range(2):
        for i, batch in enumerate(loader):
            seeds = torch.from_numpy(plan.indices(epoch, i))
            sample = reference.sample(NodeRequest(key=BatchKey(3, epoch, i), seeds={HOMOGENEOUS_NODE: seeds}))
            taken = harness.take(batch)
            assert torch.equal(taken.seeds, seeds)
            assert torch.equal(taken.n_id, sample.node[HOMOGENEOUS_NODE])
            assert torch.equal(taken.e_id, sample.edge_id[HOMOGENEOUS_EDGE])
            assert torch.equal(taken.x, X[taken.n_id])
        assert i == 6


@pytest.mark.parametrize(
    "options", [{"num_workers": 1}, {"num_workers": 4}, {"num_workers": 2, "persistent_workers": True}], ids=str
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_threads_do_not_matter(harness, options, shuffle):
    one, other = harness.loader(shuffle=shuffle), harness.loader(shuffle=shuffle, **options)
    before = ours()
    expected = [harness.epoch(one) for _ in range(2)]
    assert [harness.epoch(other) for _ in range(2)] == expected
    assert options.get("persistent_workers") or ended(before)
    assert expected[0] != expected[1]
    assert harness.epoch(harness.loader(shuffle=shuffle, seed=4)) != expected[0]
    seeds = [[seed for batch in epoch for seed in batch[0]] for epoch in expected]
    assert [sorted(epoch) for epoch in seeds] == [SEEDS.tolist()] * 2
    assert (seeds[0] == SEEDS.tolist(), seeds[0] == seeds[1]) == (not shuffle, not shuffle)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_last_batch_may_be_dropped(harness, num_workers):
    loader = harness.loader(drop_last=True, num_workers=num_workers)
    assert [len(harness.take(batch).seeds) for batch in loader] == [8] * 6
    assert len(loader) == 6


@pytest.mark.parametrize("persistent", [False, True])
def test_leaving_early_leaves_nothing_behind(harness, persistent):
    before = ours()
    loader, expected = harness.loader(num_workers=2, persistent_workers=persistent), harness.loader()
    first = harness.take(next(iter(loader))).ids()
    gc.collect()
    threads = set(ours())
    assert persistent or ended(before)
    assert [first] == harness.epoch(expected)[:1]
    assert harness.epoch(loader) == harness.epoch(expected)
    if persistent:
        assert set(ours()) == threads
    del loader
    gc.collect()
    assert ended(before)


def test_two_iterators_at_once(harness):
    loader, one = harness.loader(num_workers=1), harness.loader()
    expected = [harness.epoch(one) for _ in range(2)]
    both = [(harness.take(a).ids(), harness.take(b).ids()) for a, b in zip(loader, loader, strict=True)]
    assert [[ids for ids, _ in both], [ids for _, ids in both]] == expected


@pytest.mark.parametrize("copied", [lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy])
@pytest.mark.without("toy")  # its classes have no module
def test_copies_go_on_with_the_next_epoch(harness, copied):
    loader = harness.loader(num_workers=2, persistent_workers=True)
    list(loader)
    if harness.name == "GraphBolt" and copied is copy.copy:
        pytest.skip("the copy has the same pipe, which counts the epochs")
    other = copied(loader)
    assert other.stats().batches in (0, loader.stats().batches)
    assert harness.epoch(other) == harness.epoch(loader)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.without("toy")
def test_rows_that_are_replaced_are_seen(harness, monkeypatch, num_workers, gpu):
    options = {}
    if gpu:
        harness.on_gpu(monkeypatch)
    elif harness.name != "DGL" and num_workers:
        pytest.skip("a thread may have read the next rows already")
    elif harness.name == "GraphBolt":  # has a thread without workers, too
        options["overlap_feature_fetch"] = False
    x = X.clone()
    source = harness.source(x=x)
    for i, batch in enumerate(harness.loader(source, num_workers=num_workers, **options)):
        taken = harness.take(batch)
        assert torch.equal(taken.x, x[taken.n_id])
        if i == 1:
            harness.replace(source, x := torch.randn(NUM_NODES, 5))
        if i == 3 and harness.name != "GraphBolt":  # whose features say how they are changed
            x.zero_()


def test_memory_is_not_used_again_while_a_batch_is_there(harness):
    x = torch.randn(NUM_NODES, 2000)  # large enough to be recycled
    loader = harness.loader(harness.source(x=x))
    kept = [harness.take(batch) for _ in range(4) for batch in loader]
    assert all(torch.equal(taken.x, x[taken.n_id]) for taken in kept)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_several_threads_share_one_iterator(harness, num_workers):
    loader = harness.loader(num_workers=num_workers, batch_size=2)
    iterator, parts = iter(loader), [[] for _ in range(3)]
    consumers = [threading.Thread(target=part.extend, args=(iterator,), daemon=True) for part in parts]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(60)
        assert not consumer.is_alive(), "it still waits for a batch"
    assert sorted(i for part in parts for batch in part for i in harness.take(batch).seeds.tolist()) == SEEDS.tolist()
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (1, 0)


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.without("toy")
def test_a_batch_of_given_seeds(harness, monkeypatch, gpu):
    """It is that of an epoch with its key, from any thread."""
    if gpu:
        harness.on_gpu(monkeypatch)
    loader, found = harness.loader(), {}
    expected = [harness.take(batch) for batch in loader]

    def serve(i, seeds):
        found[i] = harness.take(loader.batch(seeds, key=(3, 0, i)))

    threads = [threading.Thread(target=serve, args=(i, taken.seeds)) for i, taken in enumerate(expected)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i].ids() for i in range(7)] == [taken.ids() for taken in expected]
    assert all(torch.equal(found[i].x, taken.x) for i, taken in enumerate(expected))
    default = harness.take(loader.batch(expected[0].seeds)).ids()
    assert default == found[0].ids() != harness.take(loader.batch(expected[0].seeds, key=(3, 0, 1))).ids()
    assert harness.take(loader.batch(torch.empty(0, dtype=torch.int64))).n_id.numel() == 0
    assert (loader.epoch, loader.stats().batches) == (0, 7)
    unseeded, before = harness.loader(seed=None), torch.get_rng_state()
    drawn = harness.take(unseeded.batch(expected[0].seeds)).ids()
    assert drawn == harness.take(loader.batch(expected[0].seeds, key=(0, 0, 0))).ids()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("seeds", "options", "message"),
    [
        (torch.tensor([60]), {}, r"in \[0, 60\)"),
        ([[1, 2], [3]], {}, "Expected (seeds|indices) as "),
        (torch.tensor([1]), {"key": (1, 2)}, r"Expected key as \(seed, epoch, batch\), got \(1, 2\)"),
        (torch.tensor([1]), {"key": (1, 2, "x")}, "each part of key to be an integer, got 'x'"),
    ],
    ids=["range", "lists", "key", "part of a key"],
)
@pytest.mark.without("toy")
def test_wrong_seeds_of_a_batch(harness, seeds, options, message):
    with pytest.raises(InputError, match=message):
        harness.loader().batch(seeds, **options)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.without("GraphBolt", "toy")
def test_functions_and_cores_of_workers(harness, num_workers):
    """``worker_init_fn`` runs once in each thread; ``enable_cpu_affinity`` binds the threads and not the caller."""
    calls, mine = [], os.sched_getaffinity(0)

    def init(worker):
        calls.append((worker, threading.current_thread().name.startswith("manyhop"), os.sched_getaffinity(0)))

    loader = harness.loader(num_workers=num_workers, worker_init_fn=init)
    for _ in range(2):
        list(loader)
    wait_until(lambda: len(calls) == 2 * num_workers)  # one may begin when another has made all batches
    assert sorted(calls) == sorted([(worker, True, mine) for worker in range(num_workers)] * 2)
    if num_workers:
        calls.clear()
        cores = [min(mine)] if harness.name == "DGL" else [[min(mine)], min(mine)]
        one = harness.loader(num_workers=len(cores), worker_init_fn=init)
        with one.enable_cpu_affinity(loader_cores=cores):
            list(one)
        assert all(found == {min(mine)} for _, _, found in calls)
        assert os.sched_getaffinity(0) == mine
        calls.clear()
        with one.enable_cpu_affinity():
            list(one)
        assert [len(found) for _, _, found in calls] == [1] * len(cores)
