"""Ranks that wait in collectives of their GPUs; torch's counts of these are made up here."""

import json
import time

import torch._C._distributed_c10d as c10d
from watched import Loader

import manyhop
from manyhop.watch.collectives import Collectives

TIMEOUT = 3.0


def report(enqueued, ended):
    """A stand-in for what torch with NCCL has."""

    def dump(includeCollectives):
        assert not includeCollectives  # would not be safe
        counts = {"last_enqueued_collective": str(enqueued), "last_completed_collective": str(ended)}
        return json.dumps({"pg_status": {"0": {k: "7" for k in counts}, "1": counts}}).encode()

    c10d._dump_nccl_trace_json = dump


def test_only_what_does_not_end_is_stuck(monkeypatch):
    monkeypatch.setattr(c10d, "_dump_nccl_trace_json", None, raising=False)
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    found, seen = Collectives(), []
    for counts in [(3, 3), (5, 3), (5, 4), (6, 4), (6, 4), (6, 6), (7, 6), (8, 8)]:
        report(*counts)
        seen.append((found.stuck(), found.stuck()))
        now += 0.7
    assert [twice for twice in seen if twice[0] != twice[1]] == []
    assert [once for once, _ in seen] == [False, False, False, True, True, False, False, False]
    c10d._dump_nccl_trace_json = lambda **_: b"{}"
    assert not found.stuck()
    c10d._dump_nccl_trace_json = None
    assert not found.stuck()


def train():
    """Rank 1 sleeps in its step; rank 0 waits on its GPU for gradients, somewhere in its own code."""
    rank = manyhop.init().rank
    for batch in Loader(1000, TIMEOUT):
        if batch == 5 and rank == 0:
            report(enqueued=9, ended=8)
            time.sleep(1000)
        if batch == 5:
            time.sleep(1000)


def wait_in_vain():
    """Nothing is known of a collective: each may do something else, for as long as it takes."""
    manyhop.init()
    for batch in Loader(20, TIMEOUT):
        if batch == 5:
            time.sleep(3 * TIMEOUT)
    manyhop.shutdown()


def test_who_does_not_come_to_a_collective_of_gpus_is_named(launcher):
    stuck, peace = launcher.start(train), launcher.start(wait_in_vain)
    for result in stuck.wait(60):
        assert result.exit_code == 1
    first = stuck.output(0)
    assert "rank 0 cannot go on (it is at test_watch_collectives.py" in first
    assert "(in a collective)" in first
    assert "rank 1 did not come to the next batch" in first
    assert [result.exit_code for result in peace.wait(60)] == [0, 0]
