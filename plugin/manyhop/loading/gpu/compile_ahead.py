"""Compile the kernels of a loader on a GPU in parallel, when the loader is made: each takes about a second."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from manyhop.loading.adapter import Adapter
from manyhop.loading.gpu.runtime import GPURuntime
from manyhop.loading.pipeline import BatchPlan
from manyhop.sampling import BatchKey


@contextmanager
def compiling_samplers(plan: BatchPlan, adapter: Adapter[Any, Any], gpu: GPURuntime) -> Iterator[None]:
    """Compile the sampling kernels during the context, in which the caller looks up the seeds of batches."""
    with _in_background(gpu, lambda: _begin(plan, adapter, gpu), enabled=adapter.seeds.of_nodes and not gpu.collective):
        yield


@contextmanager
def compiling_gathers(adapter: Adapter[Any, Any], gpu: GPURuntime, most: int) -> Iterator[None]:
    """Compile the gather kernels, for up to ``most`` batches at once, during the context."""
    own = not gpu.memory.exchanges and adapter.assembler.joins
    with _in_background(gpu, lambda: _gather(adapter, gpu, most), enabled=own):
        yield


@contextmanager
def _in_background(gpu: GPURuntime, work: Callable[[], None], *, enabled: bool) -> Iterator[None]:
    """Run ``work`` in a thread during the context, if ``enabled``. Ignore errors: making batches raises them again."""

    def run() -> None:
        with suppress(Exception), gpu.streams.on_stream():
            work()

    thread = threading.Thread(target=run, name="manyhop-compile", daemon=True)
    if enabled:
        thread.start()
    try:
        yield
    finally:
        if enabled:
            thread.join()


def _begin(plan: BatchPlan, adapter: Adapter[Any, Any], gpu: GPURuntime) -> None:
    """Begin to sample a group around seeds that need no lookup kernel. Does not learn from it."""
    size, batches = plan.batch_size, range(min(len(plan), gpu.group_size))
    positions = [torch.arange(k * size, min((k + 1) * size, plan.num_items)) for k in batches]
    keys = [BatchKey(0, 0, batch) for batch in batches]
    adapter.seeds.begin(gpu.sampling, adapter.seeds.inputs(positions), keys)


def _gather(adapter: Adapter[Any, Any], gpu: GPURuntime, most: int) -> None:
    """Gather the rows of batches without nodes."""
    for count in sorted({1, max(1, most // 4), most}):
        adapter.assembler.join([adapter.assembler.empty(gpu.device) for _ in range(count)], None)
