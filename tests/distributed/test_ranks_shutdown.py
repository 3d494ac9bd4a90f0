"""The end of a run: threads end before what they use, all is ended, and nothing hangs."""

import os
import socket
import threading
import time

import pytest
import torch
import torch.distributed as dist
from rank_loaders import graph
from torch.nn.parallel import DistributedDataParallel

import manyhop
from manyhop.errors import InputError
from manyhop.loading.pipeline import WorkerThreads
from manyhop_pyg import NeighborLoader


def end_in_mid_epoch(num_workers, persistent, dropped):
    """How many batches are being made when memory that is older than the loader would be freed."""
    under_way, found, after = set(), [], ""
    manyhop.init()
    manyhop.ranks.world.at_shutdown(lambda: found.append(len(under_way)))

    def transform(batch):
        me = object()
        under_way.add(me)
        time.sleep(0.2)
        under_way.remove(me)
        return batch

    loader = NeighborLoader(
        graph(), [2], batch_size=2, seed=1, distributed=True, rank_timeout=100.0, transform=transform,
        filter_per_worker=True, num_workers=num_workers, persistent_workers=persistent,
    )  # fmt: skip
    iterator = iter(loader)
    first = next(iterator)
    if dropped:
        del iterator
    manyhop.shutdown()
    try:
        if not dropped:
            next(iterator)
    except InputError as error:
        after = str(error)
    return first.batch_size, found, after


def end_with_a_stuck_batch():
    """Return the seconds that the end of a run takes if one of its loaders is making a batch."""
    WorkerThreads.close_seconds, begun, continues = 1.0, threading.Event(), threading.Event()
    loaders = [
        NeighborLoader(
            graph(), [2], batch_size=2, distributed=True, filter_per_worker=True, num_workers=1, transform=transform
        )
        for transform in (lambda batch: (begun.set(), continues.wait(60)), *[None] * 5)
    ]
    iterators = [iter(loader) for loader in loaders]
    begun.wait()
    start = time.monotonic()
    manyhop.shutdown()
    seconds = time.monotonic() - start
    continues.set()
    return len(iterators), seconds


def fail_at_the_end():
    """Something that fails at the end keeps nothing else from ending."""
    ended = []
    manyhop.init()
    manyhop.ranks.world.at_shutdown(lambda: ended.append("first"))
    manyhop.ranks.world.at_shutdown(lambda: {}["nothing"])
    manyhop.ranks.world.at_shutdown(lambda: ended.append("last"))
    try:
        manyhop.shutdown()
    except KeyError as error:
        ended.append(str(error))
    return ended, dist.is_initialized()


@pytest.mark.parametrize("dropped", [False, True])
def test_threads_end_before_what_is_older_than_their_loader(launcher, dropped):
    cases = [(2, False), (2, True), (0, False)]
    jobs = [launcher.start(end_in_mid_epoch, *case, dropped) for case in cases]
    for case, job in zip(cases, jobs, strict=True):
        for result in job.wait():
            assert result.exit_code == 0, (case, result)
            assert result.value[:2] == (2, [0]), (case, result)
            assert dropped or "after manyhop.shutdown()" in result.value[2], case


def test_a_stuck_batch_is_waited_for_once(launcher):
    ((loaders, seconds),) = launcher.run(end_with_a_stuck_batch, world_size=1)
    assert 1 <= seconds < loaders


def test_all_ends_are_called(launcher):
    assert launcher.run(fail_at_the_end) == [(["last", "first", "'nothing'"], False)] * 2


def train_in_turn(folder):
    """Runs that follow each other, in one process. Each ends right after its last collective, its model afterwards."""
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    for run in range(40):
        dist.init_process_group("gloo", init_method=f"file://{folder}/{run}", rank=rank, world_size=2)
        manyhop.init()
        train_briefly()
    return run


def train_briefly():
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    model(torch.ones(2, 64)).sum().backward()
    dist.broadcast(torch.ones(2_000_000), 0)
    manyhop.shutdown()
    dist.destroy_process_group()


def test_a_model_that_outlives_its_group_does_not_hang(launcher, tmp_path):
    """It would now and then, if DDP were the last owner of the group."""
    assert launcher.run(train_in_turn, str(tmp_path)) == [39] * 2


def destroy(kind):
    """Have the user's group destroyed after an epoch of a loader whose ranks share batches."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = int(os.environ["MASTER_PORT"])
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    loader = make(kind)
    batches = sum(1 for _ in loader)
    dist.destroy_process_group()
    if rank == 0:
        with socket.socket() as server:  # fails while somebody listens there
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
            server.listen()
    again = ""
    try:
        iter(loader)
    except InputError as error:
        again = str(error)
    return batches, again


def make(kind):
    if kind == "PyG":
        return NeighborLoader(graph(), [2], batch_size=8, seed=1, distributed=True, num_workers=1)
    manyhop_dgl = pytest.importorskip("manyhop_dgl")
    g = manyhop_dgl.Graph(tuple(graph().edge_index), 61)
    sampler = manyhop_dgl.NeighborSampler([2])
    return manyhop_dgl.DataLoader(g, torch.arange(61), sampler, batch_size=8, use_ddp=True, num_workers=1)


@pytest.mark.parametrize(("kind", "world_size"), [("PyG", 2), ("DGL", 1), ("DGL", 2)])
def test_the_port_is_free_when_the_group_is_destroyed(launcher, kind, world_size):
    for batches, again in launcher.run(destroy, kind, world_size=world_size):
        assert batches == 8 // world_size
        assert ("after manyhop.shutdown() or dist.destroy_process_group()" in again) == (world_size > 1)
