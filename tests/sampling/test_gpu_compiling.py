"""Kernels that are compiled side by side; they are stand-ins here."""

import threading

import pytest
import torch

from manyhop.sampling.gpu.launch import recording
from manyhop.sampling.gpu.launch.recording import Ahead, compile_ahead

DEVICE = torch.device("cpu")


class Kernel:
    """What a kernel is to those who launch it."""

    def __init__(self, barrier=None, error=None):
        self.barrier, self.error = barrier, error
        self.compiled, self.launched, self.loaded = [], [], 0

    def warmup(self, *arguments, grid, **constants):
        if self.barrier is not None:
            self.barrier.wait(60)
        if self.error is not None:
            raise self.error
        self.compiled.append((arguments, constants))
        return self

    @property
    def run(self):
        self.loaded += 1
        return None

    def __getitem__(self, grid):
        return lambda *arguments, **constants: self.launched.append((grid, arguments, constants))


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch):
    class Device:
        def __init__(self, device): ...
        def __enter__(self): ...
        def __exit__(self, *error): ...

    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(recording, "_compiled", set())


def test_all_that_differ_are_compiled_at_once_and_not_launched(monkeypatch):
    monkeypatch.setattr(recording.os, "cpu_count", lambda: 4)
    barrier = threading.Barrier(3)
    one, two, broken = Kernel(barrier), Kernel(barrier), Kernel(error=ValueError("no such type"))
    a, b, left_to_its_launch = map(Ahead, (one, two, broken))

    def work():
        for hop in range(3):
            a[hop + 1, 2](hop, K=10 if hop else 15)
        b[(1,)]("x", T=1)
        left_to_its_launch[(1,)](K=1)

    compile_ahead(work, DEVICE)
    assert sorted(constants["K"] for _, constants in one.compiled) == [10, 15]
    assert two.compiled == [(("x",), {"T": 1})]
    assert (one.loaded, two.loaded) == (2, 1)
    assert one.launched == two.launched == broken.launched == []
    barrier.reset()
    compile_ahead(work, DEVICE)  # all of it is there
    assert (len(one.compiled), len(two.compiled)) == (2, 1)
    work()
    assert one.launched == [((1, 2), (0,), {"K": 15}), ((2, 2), (1,), {"K": 10}), ((3, 2), (2,), {"K": 10})]
    assert len(broken.launched) == 1
