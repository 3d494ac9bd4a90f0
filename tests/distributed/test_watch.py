"""What a rank does to itself, the others hear of: a matrix of faults around a loop that only has a watch."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import manyhop
from manyhop._watch import Watch

BATCHES = 2000
TIMEOUT = 2.0
LATEST = TIMEOUT + 10
CULPRIT, AT = 1, 20


class Loader:
    """Hands out numbers, as a loader hands out batches."""

    def __init__(self, batches=BATCHES, timeout=TIMEOUT, fail_at=None):
        self._batches, self._fail_at = batches, fail_at
        self._watch = Watch("Loader", timeout=timeout)
        self._epoch = 0

    def __iter__(self):
        return Batches(self._watch.begin(self._epoch), self._batches, self._fail_at)


class Batches:
    def __init__(self, iteration, batches, fail_at):
        self._iteration, self._batches, self._fail_at, self._next = iteration, batches, fail_at, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self._next == self._batches:
            self._iteration.ended()
            raise StopIteration
        self._iteration.wants()
        if self._next == self._fail_at:
            error = ValueError("row 7 is broken")
            self._iteration.failed(error)
            raise error
        self._next += 1
        self._iteration.got()
        return self._next - 1

    def __del__(self):
        self._iteration.left()


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
    if fault == "sleep":
        time.sleep(1000)


def train(fault, kind, culprit=CULPRIT):
    """A script whose rank ``culprit`` gets into trouble at a batch."""
    torch.set_num_threads(1)
    if kind == "own group":
        manyhop.init(timeout=TIMEOUT)
    else:
        dist.init_process_group("gloo")  # its timeout: half an hour
    rank = dist.get_rank()
    loader = Loader(fail_at=AT if fault == "batch" and rank == culprit else None)
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


FAULTS = ("raise", "batch", "kill", "stop", "sleep", "break")


@pytest.mark.parametrize("kind", ["alone", "own group", "users group"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_fault_ends_in_an_error_that_names_the_culprit(launcher, kind, world_size):
    jobs = {fault: launcher.start(train, fault, kind, world_size=world_size) for fault in FAULTS}
    for fault, ranks in jobs.items():
        others = [rank for rank in range(world_size) if rank != CULPRIT]
        ended = [ranks.wait_for_exit(rank) for rank in others]
        if fault == "stop":
            ranks.kill(CULPRIT)
        results = ranks.wait(20)
        if fault != "batch":
            began = float(results[CULPRIT].output.split("fault at ")[1].split()[0])
            print(fault, [round(x - began, 1) for x in ended])
            assert max(ended) - began < LATEST
        for rank in others:
            print(fault, rank, results[rank].output)
            assert results[rank].exit_code == 1, fault
            assert f"rank {CULPRIT}" in results[rank].output, fault
        assert results[CULPRIT].exit_code == {"kill": -9, "stop": -9, "break": 0}.get(fault, 1), fault
