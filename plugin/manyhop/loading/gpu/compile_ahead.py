"""Kernels of a loader on a GPU, compiled side by side when the loader is made: one takes about a second."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from manyhop.loading.adapter import Adapter
from manyhop.loading.gpu.runtime import GPURuntime
from manyhop.pipeline import BatchPlan
from manyhop.sampling import BatchKey


@contextmanager
def compiling_samplers(plan: BatchPlan, adapter: Adapter[Any, Any], gpu: GPURuntime) -> Iterator[None]:
    """In the body, which looks up the seeds of batches, compile the kernels that sample around nodes."""
    with _beside(gpu, lambda: _begin(plan, adapter, gpu), asked=adapter.seeds.of_nodes):
        yield


@contextmanager
def compiling_gathers(adapter: Adapter[Any, Any], gpu: GPURuntime, most: int) -> Iterator[None]:
    """In the body, compile the kernels that gather rows, those of up to ``most`` batches at once."""
    own = not gpu.memory.exchanges and adapter.assembler.joins
    with _beside(gpu, lambda: _gather(adapter, gpu, most), asked=own):
        yield


@contextmanager
def _beside(gpu: GPURuntime, work: Callable[[], None], *, asked: bool) -> Iterator[None]:
    """In the body, a thread works, if asked. What fails there fails again, with a message, when batches are made."""

    def run() -> None:
        with suppress(Exception), gpu.streams.here():
            work()

    thread = threading.Thread(target=run, name="manyhop-compile", daemon=True)
    if asked:
        thread.start()
    try:
        yield
    finally:
        if asked:
            thread.join()


def _begin(plan: BatchPlan, adapter: Adapter[Any, Any], gpu: GPURuntime) -> None:
    """Begin to sample a group, around seeds that need no kernel to be found. Nothing is learned from that."""
    size, batches = plan.batch_size, range(min(len(plan), gpu.group_size))
    positions = [torch.arange(k * size, min((k + 1) * size, plan.num_items)) for k in batches]
    keys = [BatchKey(0, 0, batch) for batch in batches]
    adapter.seeds.begin(gpu.sampling, adapter.seeds.inputs(positions), keys)


def _gather(adapter: Adapter[Any, Any], gpu: GPURuntime, most: int) -> None:
    """Gather the rows of batches without nodes."""
    for count in sorted({1, max(1, most // 4), most}):
        adapter.assembler.join([adapter.assembler.empty(gpu.device) for _ in range(count)], None)
