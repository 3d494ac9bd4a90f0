"""Who is at fault, from heartbeats alone: the seconds are made up."""

import threading

import pytest
import torch

from manyhop.errors import RankError
from manyhop.ranks.watch.detector import (
    End,
    FaultDetector,
    Heartbeat,
    LoopStatus,
    described,
    is_of_communication,
    reason,
)
from manyhop.ranks.watch.monitor import place_of, silence_of
from manyhop.system.failure import note_batch

TIMEOUT = 10.0


class Ranks:
    """Ranks whose heartbeats a test changes; this one is rank 0."""

    def __init__(self, world_size=3, store_holder=0):
        self.detector = FaultDetector(0, world_size, store_holder)
        self.at = [LoopStatus(1, 0, 5, "step")] * world_size
        self.waits = [False] * world_size
        self.moves = [0] * world_size
        self.ticks = [0] * world_size
        self.program_ends = [None] * world_size
        self.followed = [None] * world_size
        self.dead = set()

    def pass_time(self, seconds, busy=()):
        """All ranks live on; those in ``busy`` do something."""
        for _ in range(round(seconds)):
            for rank in range(len(self.at)):
                self.ticks[rank] += rank not in self.dead
                self.moves[rank] += rank in busy
            fields = zip(self.ticks, self.moves, self.waits, self.program_ends, self.followed, self.at, strict=True)
            heartbeats = [Heartbeat(*beat, "", end, followed, {0: at}) for *beat, end, followed, at in fields]
            self.detector.update([Heartbeat.decode(heartbeat.encode()) for heartbeat in heartbeats], 1.0)

    def fault(self, iteration=1, received=5, **kwargs):
        return self.detector.fault(0, iteration, received, TIMEOUT, **kwargs)


@pytest.mark.parametrize("waits", [[True, False, True], [True, True, True]])
def test_a_rank_that_is_there_may_take_as_long_as_it_wants(waits):
    ranks = Ranks()
    ranks.at[0] = LoopStatus(3, 0, 90, "step")
    ranks.waits = waits
    ranks.pass_time(10_000)
    assert ranks.fault(iteration=3, received=90) is None


def test_silence():
    ranks = Ranks()
    ranks.pass_time(1)
    ranks.dead.add(2)
    ranks.pass_time(9)
    assert ranks.fault() is None
    assert ranks.fault(suspicion=3.0).ranks == (2,)
    ranks.pass_time(3)
    assert (ranks.fault().kind, ranks.fault().ranks) == ("silent", (2,))


def test_a_minute_of_silence():
    assert [silence_of(timeout) for timeout in (5.0, 60.0, 600.0, 6000.0)] == [5.0, 60.0, 60.0, 600.0]


def test_whoever_does_nothing_is_suspected_when_a_collective_failed():
    ranks = Ranks()
    ranks.at[0], ranks.waits[2] = left("followed", 5), True
    ranks.pass_time(5)
    assert ranks.fault(received=float("inf")) is None
    fault = ranks.fault(received=float("inf"), suspicion=3.0)
    assert (fault.kind, fault.ranks) == ("idle", (1,))
    assert fault.has_deeper_reason


def test_a_rank_without_any_heartbeat_is_silent():
    detector = FaultDetector(0, 2, 0)
    for _ in range(12):
        detector.update([Heartbeat(loops={0: LoopStatus(1, 0, 5, "step")}), None], 1.0)
    assert detector.fault(0, 1, 5, TIMEOUT).ranks == (1,)


def left(kind, received, text="", ranks=()):
    return LoopStatus(1, 0, received, "out", (End(1, 0, received, kind, text, ranks),))


def test_leaving_after_the_same_batch_is_fine():
    ranks = Ranks()
    ranks.at[1] = left("left", 5)
    ranks.pass_time(1)
    assert ranks.fault(received=4) is None
    assert (ranks.fault(received=5).kind, ranks.fault(received=5).ranks) == ("left", (1,))
    ranks.at[1] = LoopStatus(2, 1, 0, "making", ranks.at[1].ends)
    ranks.pass_time(1)
    assert ranks.fault(received=5).ranks == (1,)
    assert ranks.fault(iteration=2, received=0) is None


def test_first_causes_come_before_consequences():
    ranks = Ranks(4)
    ranks.at[1] = left("left", 5)
    ranks.at[2] = left("failed", 7, "ValueError: x")
    ranks.at[3] = left("followed", 5, "rank 2 failed", (2,))
    ranks.pass_time(1)
    assert (ranks.fault().kind, ranks.fault().ranks) == ("failed", (2,))
    assert "ValueError: x" in ranks.fault().text
    ranks.at[1] = ranks.at[2] = LoopStatus(1, 0, 5, "step")
    ranks.pass_time(1)
    assert (ranks.fault().kind, ranks.fault().ranks) == ("followed", (2,))


def test_a_rank_that_followed_is_not_named():
    """Rank 1 ended its program as rank 2 had: both before their first batch of the second iteration."""
    ranks = Ranks()
    ranks.at[1] = ranks.at[2] = LoopStatus(1, 0, 5, "out")
    ranks.program_ends[1], ranks.followed[1] = "rank 2 ended its program", (2,)
    ranks.pass_time(1)
    fault = ranks.fault(iteration=2, received=0)
    assert (fault.kind, fault.ranks) == ("followed", (2,))
    ranks.program_ends[2] = "ValueError: x"
    ranks.pass_time(1)
    fault = ranks.fault(iteration=2, received=0)
    assert (fault.kind, fault.ranks) == ("quit", (2,))


def test_of_those_that_left_the_one_with_the_fewest_batches_is_named():
    ranks = Ranks()
    ranks.at[1], ranks.at[2] = left("left", 3), left("left", 0)
    ranks.pass_time(1)
    assert ranks.fault().text.startswith("rank 2 left its loop after 0 batches of epoch 0")


def test_errors_of_other_ranks():
    ranks = Ranks()
    ranks.at[1], ranks.at[2] = left("left", 5), left("quit", 5)
    ranks.pass_time(1)
    assert ranks.detector.failed(0, 1) is None
    ranks.at[2] = left("quit", 5, "ValueError: x")
    ranks.pass_time(1)
    assert ranks.detector.failed(0, 1).ranks == (2,)
    assert ranks.detector.failed(0, 2) is None
    ranks.at[1] = left("failed", 7, "KeyError: y")
    ranks.pass_time(1)
    assert ranks.detector.failed(0, 1).ranks == (1,)


def test_the_fault_of_another_rank_is_no_own_error():
    error = RankError("Loader: rank 2 is gone", ranks=(2,))
    assert reason(error, "quit") == ("followed", "Loader: rank 2 is gone", (2,))
    assert reason(ValueError("x"), "quit") == ("quit", "ValueError: x", ())


def test_other_loaders_do_not_matter():
    detector = FaultDetector(0, 2, 0)
    for tick in range(20):
        mine = {0: LoopStatus(1, 0, 5, "step"), 1: LoopStatus(1, 0, 2, "step")}
        detector.update([Heartbeat(tick, tick, loops=mine), Heartbeat(tick, tick, loops={1: left("left", 1)})], 1.0)
    assert detector.fault(0, 1, 5, TIMEOUT) is None
    assert detector.fault(1, 1, 2, TIMEOUT).ranks == (1,)


def test_errors_of_peers_are_not_the_cause():
    gloo = RuntimeError("[../gloo/transport/tcp/pair.cc:553] Connection closed by peer")
    batch = ValueError("bad")
    assert not is_of_communication(batch)
    batch.__cause__ = gloo
    assert is_of_communication(gloo)
    assert is_of_communication(batch)
    batch.__cause__ = batch  # as of `raise error from error`
    assert not is_of_communication(batch)
    assert not is_of_communication(ValueError("gloo"))
    assert len(described(ValueError("x" * 5000))) < 1000


class MuteError(Exception):
    def __str__(self):
        raise AttributeError("reason")


def test_errors_are_quoted_with_their_batch():
    failed = MuteError()
    note_batch(failed, epoch=2, batch=17)
    assert described(failed) == "batch 17 of epoch 2: MuteError: (its message cannot be shown)"
    assert described(ValueError("bad")) == "ValueError: bad"


def test_the_place_of_a_thread():
    entered, leave = threading.Event(), threading.Event()

    def hook(grad):
        entered.set()
        leave.wait(60)

    def work():
        x = torch.ones(1, requires_grad=True)
        x.register_hook(hook)
        x.sum().backward()

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(60)
    (place, waits), (of_gpu, gpu_waits) = place_of(thread.ident, False), place_of(thread.ident, True)
    leave.set()
    thread.join()
    assert place.startswith("test_watch_detector.py:")
    assert place.endswith("in hook")
    assert of_gpu == f"{place} (in a collective)"
    assert (waits, gpu_waits) == (False, True)
    assert place_of(0, False) == ("", False)


@pytest.mark.parametrize("package", ["manyhop", "manyhop_pyg", "manyhop_dgl"])
def test_the_place_of_a_thread_is_in_the_users_code(package):
    namespace = {"__name__": f"{package}._loader", "place_of": place_of, "thread": threading.get_ident()}
    exec("def next_batch():\n    return place_of(thread, False)", namespace)
    place, _ = namespace["next_batch"]()
    assert place.endswith("in test_the_place_of_a_thread_is_in_the_users_code")
