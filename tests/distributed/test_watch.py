"""What a rank does to itself, the others hear of: a matrix of faults around a loop that only has a watch."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from watched import Loader

import manyhop

BATCHES = 100_000  # more than there is time for: the watch ends the loop
TIMEOUT = 8.0  # a process of a busy machine may be silent for seconds
LATEST = 200.0  # seconds, about 15 on a quiet machine; torch's own timeout is half an hour
CULPRIT, AT = 1, 20


def step_of(kind):
    """What a training step does: nothing together, or a backward pass with DDP."""
    if kind == "alone":
        return lambda: time.sleep(0.01)
    model = DistributedDataParallel(torch.nn.Linear(4, 4))

    def step():
        model(torch.ones(2, 4)).sum().backward()
        time.sleep(0.005)

    return step


def misbehave(fault):
    if fault == "raise":
        raise KeyError("my step is broken")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)


def train(fault, kind, culprit=CULPRIT):
    """A script whose rank ``culprit`` gets into trouble at a batch."""
    torch.set_num_threads(1)
    if kind == "own group":
        manyhop.init(timeout=TIMEOUT)
    else:
        dist.init_process_group("gloo")  # its timeout: half an hour
    rank = dist.get_rank()
    loader = Loader(BATCHES, TIMEOUT, fail_at=AT if fault == "batch" and rank == culprit else None)
    step = step_of("alone" if kind == "alone" else "ddp")
    print("begins", flush=True)
    for batch in loader:
        if rank == culprit and batch == AT:
            print(f"fault at {time.time()}", flush=True)  # both processes are on this machine
            if fault == "break":
                break
            misbehave(fault)
        step()
    if kind != "own group":
        manyhop.shutdown()
        dist.destroy_process_group()


FAULTS = ("raise", "batch", "kill", "stop", "break")


@pytest.mark.parametrize(("kind", "world_size"), [("alone", 3), ("own group", 2), ("users group", 3)])
@pytest.mark.slow
def test_a_fault_ends_in_an_error_that_names_the_culprit(launcher, kind, world_size):
    jobs = {fault: launcher.start(train, fault, kind, world_size=world_size) for fault in FAULTS}
    for fault, ranks in jobs.items():
        others = [rank for rank in range(world_size) if rank != CULPRIT]
        ended = [ranks.wait_for_exit(rank) for rank in others]
        if fault == "stop":
            ranks.kill(CULPRIT)
        results = ranks.wait()
        if fault != "batch":
            assert "fault at" in results[CULPRIT].output, (fault, results)
            began = float(results[CULPRIT].output.split("fault at ")[1].split()[0])
            print(fault, [round(x - began, 1) for x in ended])
            assert max(ended) - began < LATEST
        for rank in others:
            print(fault, rank, results[rank].output)
            assert results[rank].exit_code == 1, fault
            assert f"rank {CULPRIT}" in results[rank].output, fault
        assert results[CULPRIT].exit_code == {"kill": -9, "stop": -9, "break": 0}.get(fault, 1), fault


def catch_errors(fault):
    """Scripts whose main() catches all errors: rank 0 that of a collective; rank 1, too, if the loader raised it."""
    try:
        train(fault, "own group")
    except Exception as error:
        if fault == "raise" and manyhop.init().rank == CULPRIT:
            raise
        print("caught", type(error).__name__, flush=True)


def leave_early():
    for batch in Loader(BATCHES, TIMEOUT):
        if batch == AT:
            break


def wait_for_rows(under_way, seconds):
    """Rank 1 is stuck where it makes its first batch; the step of rank 0 may need its rows."""
    rank = manyhop.init().rank
    loader = Loader(1, TIMEOUT, first_takes=seconds if rank == CULPRIT else 0.0, under_way=under_way)
    for _ in loader:
        time.sleep(0.0 if rank == CULPRIT else seconds)


@pytest.fixture(scope="module")
def ended(launcher):
    """How the ranks of some jobs ended, which ran at the same time."""
    jobs = {
        "raise": launcher.start(catch_errors, "raise"),
        "batch": launcher.start(catch_errors, "batch"),
        "early": launcher.start(leave_early),
        "stuck": launcher.start(wait_for_rows, True, 1000.0),
        "long": launcher.start(wait_for_rows, False, 2.5 * TIMEOUT),
    }
    return {name: job.wait(LATEST) for name, job in jobs.items()}


@pytest.mark.parametrize(("fault", "text"), [("raise", "KeyError: 'my step is broken'"), ("batch", "row 7 is broken")])
def test_a_rank_that_fails_is_named_where_others_catch_what_follows(ended, fault, text):
    output = ended[fault][0].output
    assert "caught" in output
    assert "rank 1 " in output
    assert text in output


def test_an_early_break_is_no_fault(ended):
    assert [(result.exit_code, result.output) for result in ended["early"]] == [(0, "")] * 2


def test_a_step_that_waits_for_rows_of_a_rank_that_is_stuck_is_ended(ended):
    result = ended["stuck"][0]
    assert result.exit_code == 1
    assert "manyhop ERROR: rank 0 cannot go on" in result.output
    assert "rank 1 did not come to the next batch for 8 s, while others need it" in result.output


def test_a_step_without_rows_under_way_may_last(ended):
    assert [result.exit_code for result in ended["long"]] == [0, 0], ended["long"]
