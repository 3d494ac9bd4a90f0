"""Exchanges between GPUs take turns at communicators; as test_exchange_gpu.py, without GPUs."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch
from exchanges import ENV, make_exchange, shard

import manyhop
from manyhop.errors import RankError
from manyhop.features import BufferPool, RowRequest
from manyhop.ranks import control

WHOLE = torch.arange(80.0).view(40, 2)
COUNT = 2


class Loader:
    """The exchanges of a loader without the rest of it."""

    def __init__(self, name, timeout=100.0):
        self.exchange = make_exchange("GPUs", name, timeout)
        self.exchange.rest()
        self.source, self.steps = shard("GPUs", WHOLE, manyhop.init()), None

    def begin(self, epoch):
        from manyhop.loading.lockstep import EpochExchanges

        if self.steps is not None:
            self.steps.finish()
        self.steps = EpochExchanges(self.exchange, epoch, COUNT)

    def batch(self, number):
        ids = torch.randint(0, 40, (9,), generator=torch.Generator().manual_seed(number + manyhop.init().rank))
        (rows,) = self.steps.gather(number, [RowRequest(self.source, ids)], BufferPool())
        return torch.equal(rows, WHOLE[ids])

    def epoch(self, epoch):
        self.begin(epoch)
        return [self.batch(number) for number in range(COUNT)]


def num_made():
    from manyhop.features.exchange.gpu.connections import _all

    return sum(len(each._made) for each in _all.values())


def take_turns():
    a, b, c = (Loader(name) for name in "abc")
    right, made = [], []
    for epoch in range(2):
        for loader in (a, b, c):
            right += loader.epoch(epoch)
    made.append(num_made())
    a.begin(2)
    right.append(a.batch(0))
    right += b.epoch(2)  # in the middle of the other
    right.append(a.batch(1))
    made.append(num_made())
    b.begin(3), c.begin(3)
    for number in range(COUNT):  # side by side
        right += [b.batch(number), c.batch(number)]
    made.append(num_made())
    b.begin(4)
    b.batch(0)
    b.steps.close()  # leaves on all ranks after the same batch
    right += c.epoch(4) + b.epoch(5)
    a.begin(3), b.begin(6)
    a.steps.close(), b.steps.close()  # before their first exchanges
    right += c.epoch(5) + b.epoch(7) + a.epoch(4)
    return right, [*made, num_made()]


def test_exchanges_share_a_communicator_unless_they_overlap(launcher):
    for right, made in launcher.run(take_turns, env=ENV):
        assert all(right)
        assert made == [1, 2, 2, 2]


def in_threads():
    from manyhop.features.exchange.gpu.connections import connections

    rank = manyhop.init().rank
    shared, found = connections(torch.device("cpu"), 100.0), {}

    def run(name, pause):  # the interpreter of kernels is not for threads: words only
        for epoch in range(20):
            time.sleep(pause)
            peers = shared.take(f"{name} {epoch}")
            received, sizes = torch.zeros(1, dtype=torch.int64), [1 - rank, rank]
            for number in range(COUNT):
                peers.swap(received, torch.tensor([100 * ord(name) + number]), sizes, sizes)
                found.setdefault(name, []).append(int(received) == 100 * ord(name) + number)
            shared.give_back(peers)

    pauses = [0.0, 0.003] if rank == 0 else [0.002, 0.0]
    threads = [threading.Thread(target=run, args=each) for each in zip("ab", pauses, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, num_made()


def test_ranks_may_take_turns_in_another_order_in_threads(launcher):
    for found, made in launcher.run(in_threads):
        assert found == {"a": [True] * 20 * COUNT, "b": [True] * 20 * COUNT}
        assert made <= 2


def leave_open():
    from manyhop.features.exchange.gpu.connections import connections

    a, b = Loader("a"), Loader("b")
    a.begin(0)
    a.batch(0)
    connections(torch.device("cpu"), 100.0)._timeout = 2.0  # the first exchange may take longer
    if manyhop.init().rank == 0:
        a.steps.close()
    try:
        b.epoch(0)
    except RankError as error:
        return str(error)
    return ""


def test_an_iterator_that_stays_open_on_one_rank(launcher):
    first, second = launcher.run(leave_open, env=ENV)
    assert "got an open iterator. Leave loops on all ranks after the same batch." in second
    assert first


def announce_to_nobody(announcers):
    """Some ranks announce what others do not come to hear: on a GPU, a kernel would wait for them."""
    from manyhop.features.exchange.peers import Peers

    aborted, abort = [], Peers.abort
    Peers.abort = lambda peers: (aborted.append(peers), abort(peers))
    rank, loader = manyhop.init().rank, Loader("a")
    right = loader.epoch(0)
    if rank in announcers:
        Peers.is_idle = lambda peers: False
    begin = time.monotonic()
    manyhop.shutdown()
    return all(right), len(aborted), time.monotonic() - begin


@pytest.mark.parametrize("announcers", [[], [0, 2], [0, 1, 2]])
def test_the_end_does_not_wait_for_ranks_that_have_ended(launcher, announcers):
    found = launcher.run(announce_to_nobody, announcers, world_size=3, env=ENV)
    assert all(right for right, _, _ in found)
    assert [count for _, count, _ in found] == [int(rank in announcers) for rank in range(3)]
    assert max(seconds for _, _, seconds in found) < 30  # an exchange waits for 100, the end for 60 if others may come


def fail_with_rows_under_way(arrived):
    """Rank 1 does not come to an exchange; on a GPU, the rows of the one before could be on their way still."""
    from manyhop.features.exchange.peers import Peers

    aborted, seen = [], []
    Peers.abort = lambda peers: aborted.append(peers)  # called as a method
    rank, loader = manyhop.init().rank, Loader("a")
    loader.begin(0)
    right = loader.batch(0)
    loader.exchange._rows_done = SimpleNamespace(query=lambda: arrived)
    if rank == 1:
        loader.exchange._connections = None  # it announces nothing either
    else:
        loader.exchange._exchange = _break
        with pytest.raises(RankError):
            loader.batch(1)
        assert loader.steps.rows_under_way() is not arrived
        seen = [len(aborted), loader.steps.lacks_rows]
    loader.steps.close()
    control.exchange("all have raised", {}, timeout=100.0)
    return right, [*seen, len(aborted), loader.steps.lacks_rows]


def _break(*_):
    raise RuntimeError("nothing came")


@pytest.mark.parametrize("arrived", [True, False])
def test_nothing_is_aborted_while_a_step_may_use_rows_that_have_not_come(launcher, arrived):
    for right, seen in launcher.run(fail_with_rows_under_way, arrived, world_size=3, env=ENV)[::2]:
        assert right
        assert seen == [int(arrived), False, 1, not arrived]  # a step may also wait for all work of its GPU
