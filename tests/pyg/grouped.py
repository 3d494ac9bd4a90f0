"""A stand-in for engines of a GPU, which samples on the CPU, in groups of batches."""

import importlib
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from gpu_stand_ins import CPU, PendingEdges, Positions, exchange_nothing, pyg_works_on, stand_for_gpu
from helpers_pyg import all_same

import manyhop.sampling
from manyhop.loading.pipeline.streams import tensors_in
from manyhop.sampling import CPUHGTSampler, CPUSampler, EdgeSampler
from manyhop.system import triton_compiler


class StandIn:
    """Begins by noting the requests, and samples when they are finished."""

    groups: ClassVar[list[int]] = []
    threads: ClassVar[set[str]] = set()

    def __init__(self, make: Any, *args: Any, device: torch.device, **kwargs: Any) -> None:
        self._sampler = make(*args, **kwargs)
        self.edge_type = getattr(self._sampler, "edge_type", None)

    def sample(self, request: Any) -> Any:
        return self._sampler.sample(request)

    def begin(self, requests: Any) -> Any:
        StandIn.groups.append(len(requests))
        StandIn.threads.add(threading.current_thread().name)
        return SimpleNamespace(finish=lambda: [self._sampler.sample(request) for request in requests])


class StandInOfEdges(PendingEdges):
    """The same for seed edges."""

    def __init__(self, samplers: Any, batches: Any) -> None:
        StandIn.groups.append(len(batches))
        super().__init__(samplers, batches)


def on_stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Loaders take the way of GPUs once the result is called; calling it with ``False`` ends that."""

    def make(kind: Any) -> Any:
        return lambda *args, **kwargs: StandIn(kind, *args, **kwargs)

    stand_for_gpu(monkeypatch.setattr)
    if triton_compiler.usable():
        monkeypatch.setattr(importlib.import_module("manyhop.loading.pipeline.gpu"), "GPUPositions", Positions)
    else:
        monkeypatch.setitem(sys.modules, "manyhop.loading.pipeline.gpu", SimpleNamespace(GPUPositions=Positions))
    types = SimpleNamespace(PendingEdges=StandInOfEdges)
    monkeypatch.setitem(sys.modules, "manyhop.sampling.gpu.edges", types)
    for name, kind in (("GPUSampler", CPUSampler), ("GPUHGTSampler", CPUHGTSampler), ("GPUEdgeSampler", EdgeSampler)):
        monkeypatch.setitem(vars(manyhop.sampling), name, make(kind))
    StandIn.groups, StandIn.threads = [], set()

    def switch(on: bool = True) -> dict[str, Any]:
        pyg_works_on(monkeypatch.setattr, CPU if on else None)
        return {}

    return switch


def on_cuda(on: bool = True) -> dict[str, Any]:
    """Return the options of loaders that take the way of GPUs, or that of the CPU, where there is a GPU."""
    return {"device": "cuda" if on else "cpu"}


def compare(on_gpu: Any, make: Any, epochs: int = 2) -> Any:
    """Make a loader on each way, and compare their batches; return that of the GPU's.

    With the stand-in, a third one makes its batches as where ranks exchange rows.
    """
    where = on_gpu(False)
    expected = [list(loader) for loader in [make(**where)] for _ in range(epochs)]
    where = on_gpu(True)
    if where:
        loader = make(**where)
        for epoch in expected:
            got = list(loader)
            assert all(tensor.is_cuda for batch in got for tensor in tensors_in(batch))
            assert all_same(epoch, [batch.cpu() for batch in got])
        return loader
    noted, loader = ([*StandIn.groups], {*StandIn.threads}), make()
    with pytest.MonkeyPatch.context() as monkeypatch:
        exchange_nothing(monkeypatch.setattr, loader)
        for epoch in expected:
            assert all_same(epoch, list(loader))
    (StandIn.groups, StandIn.threads), loader = noted, make()
    for epoch in expected:
        assert all_same(epoch, list(loader))
    return loader
