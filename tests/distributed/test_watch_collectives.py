"""Ranks that wait in collectives of their GPUs; torch's counts of these are made up here."""

import json
import os
import signal
import time

import torch._C._distributed_c10d as c10d
from watched import Loader

import manyhop
from manyhop.ranks.watch.monitor import Collectives

TIMEOUT = 5.0


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


def train(fault):
    """Rank 0 waits on its GPU for gradients of rank 1, somewhere in its own code."""
    rank = manyhop.init().rank
    for batch in Loader(20, TIMEOUT):
        if batch == 5 and rank == 0:
            report(enqueued=9, ended=8)
            time.sleep(1000 if fault == "kill" else 3.2 * TIMEOUT)
        if batch == 5 and rank == 1:
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(2.6 * TIMEOUT)
    manyhop.shutdown()


def test_only_a_rank_that_is_gone_ends_those_that_wait_on_their_gpus(launcher):
    killed, peace = launcher.start(train, "kill"), launcher.start(train, "sleep")
    waiting, gone = killed.wait()
    assert (waiting.exit_code, gone.exit_code) == (1, -9)
    assert "rank 0 cannot go on (it is at test_watch_collectives.py" in waiting.output
    assert "(in a collective)" in waiting.output
    assert "rank 1 gave no sign of life" in waiting.output
    assert [result.exit_code for result in peace.wait()] == [0, 0], peace.output(0) + peace.output(1)
