"""Warm up a loader on a GPU: compile kernels, reserve memory and fill caches before the first batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from manyhop.features import VISITS_PER_ROW, DistributedRows, RowRequest, Visits, keep_hot
from manyhop.features.cached_files import not_counting
from manyhop.loading.adapter import Adapter
from manyhop.loading.gpu.memory import row_bytes
from manyhop.loading.gpu.runtime import JOINED, GPURuntime
from manyhop.loading.gpu.samples import BACKLOG
from manyhop.loading.gpu.steps import SampledGroup
from manyhop.loading.keys import first_batches
from manyhop.loading.pipeline import BatchPlan
from manyhop.sampling import BatchKey
from manyhop.system.triton_compiler import showing_compilation

if TYPE_CHECKING:
    from manyhop.features import GPUExchange


def fill_cache(
    plan: BatchPlan | None, adapter: Adapter[Any, Any], gpu: GPURuntime, exchange: GPUExchange | None
) -> None:
    """Sample the first batches of epoch 0, and cache the rows that they read most often.

    All ranks call it if they ``exchange`` rows. Without a ``plan``, a user's sampler defines the batches.
    """
    gpu.memory.take_hot_rows()
    wanted = gpu.memory.cache_bytes
    if wanted == 0 or plan is None:
        if exchange is not None and gpu.memory.has_hot_rows:
            exchange.keep([])  # prepares the kernels for hot rows of another loader
        return
    local, remote = Visits(gpu.device), Visits(gpu.device)
    requested = 0

    def record(requests: list[RowRequest]) -> list[Tensor]:
        nonlocal requested
        slow = [request for request in requests if gpu.memory.is_slow(request)]
        remote.add([request for request in slow if isinstance(request.source, DistributedRows)])
        local.add([request for request in slow if not isinstance(request.source, DistributedRows)])
        requested += sum(request.index.numel() * row_bytes(request.source) for request in slow)
        return [torch.empty(0) for _ in requests]

    for positions in first_batches(plan, received=False):
        if requested >= VISITS_PER_ROW * wanted:
            break
        with gpu.intercepting_gathers(record):
            adapter.assembler.assemble_group([adapter.seeds.sample(positions)], None)
    if exchange is not None:
        exchange.keep(remote.hottest(wanted))
    gpu.memory.cache(keep_hot(local.hottest(wanted), gpu.device))


@contextmanager
def _in_background(gpu: GPURuntime, work: Callable[[], None], *, enabled: bool) -> Iterator[None]:
    """Compile kernels by ``work``, in a thread, if ``enabled``. Ignore errors: the first batch raises them again."""

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
    """Begin to sample a group around seeds that need no lookup kernel, without learning sizes."""
    size, batches = plan.batch_size, range(min(len(plan), gpu.group_size))
    positions = [torch.arange(k * size, min((k + 1) * size, plan.num_items), device="cpu") for k in batches]
    keys = [BatchKey(0, 0, batch) for batch in batches]
    adapter.seeds.begin(gpu.sampling, adapter.seeds.inputs(positions), keys)


def _gather(adapter: Adapter[Any, Any], gpu: GPURuntime, most: int) -> None:
    """Gather the rows of up to ``most`` batches without nodes at once."""
    for count in sorted({1, max(1, most // 4), most}):
        adapter.assembler.assemble_group([adapter.assembler.empty(gpu.device) for _ in range(count)], None)


_WARM_UPS = 3
_RESERVED_BYTES = 1 << 30  # largest reservation for batches before the first one


def prepare(
    plan: BatchPlan | None,
    adapter: Adapter[Any, Any],
    gpu: GPURuntime,
    *,
    num_threads: int,
    sizes_are_known: bool,
) -> None:
    """Do the work that the first batch would wait for.

    Args:
        plan: plan of the batches, with seed 0; ``None``: a user's sampler cuts the batches.
        num_threads: number of threads that make batches; 0: the caller makes them.
        sizes_are_known: whether batches have their final sizes.
    """
    if not adapter.seeds.has_times:
        plan = None
    with gpu.streams.on_stream(), not_counting():
        if not gpu.memory.exchanges:
            fill_cache(plan, adapter, gpu, None)
        gpu.drain()
        if plan is not None and plan.num_items > 0 and gpu.sampling is not None:
            if gpu.lookup is None:
                plan.indices(0, 0)  # imports numba, which is not safe in two threads at once
            gathers = not gpu.memory.exchanges and adapter.assembler.gathers_groups
            with showing_compilation(), _in_background(gpu, lambda: _gather(adapter, gpu, JOINED), enabled=gathers):
                _warm_up(plan, adapter, gpu, num_threads, sizes_are_known)
        gpu.drain()
    gpu.streams.synchronize()
    gpu.streams.forget_times()
    gpu.memory.take_cache_counts()  # the user did not request the batches


def _warm_up(
    plan: BatchPlan, adapter: Adapter[Any, Any], gpu: GPURuntime, num_threads: int, sizes_are_known: bool
) -> None:
    """Sample the first batches of epoch 0 and drop them, to learn sizes and reserve memory."""
    batches = range(min(len(plan), gpu.group_size))
    if not batches:
        return
    inputs: Sequence[Any]
    if gpu.lookup is not None:
        samples = adapter.seeds.of_nodes and not gpu.collective
        with _in_background(gpu, lambda: _begin(plan, adapter, gpu), enabled=samples):
            inputs = gpu.lookup.of(plan, 0, batches)
    else:
        inputs = adapter.seeds.inputs([torch.from_numpy(plan.indices(0, batch)) for batch in batches])
    keys = [BatchKey(0, 0, batch) for batch in batches]
    if gpu.collective:
        groups = [SampledGroup(gpu, adapter, inputs, keys)]
        groups[0].take_sample(0)
        if sizes_are_known:
            reserve(adapter, gpu, [groups[0].take_sample(k) for k in range(len(groups[0]))])
        return
    ahead = 2 * max(1, num_threads)
    for _ in range(_WARM_UPS):  # the first one learns sizes
        groups = [SampledGroup(gpu, adapter, inputs, keys) for _ in range(ahead)]
        for group in groups:
            group.take_sample(0)
    last = len(plan) % gpu.group_size  # a smaller group may need other workspaces
    if 0 < last < len(batches):
        SampledGroup(gpu, adapter, inputs[:last], keys[:last]).take_sample(0)
    if sizes_are_known:
        reserve(adapter, gpu, [groups[0].take_sample(k) for k in range(len(groups[0]))])


def reserve(adapter: Adapter[Any, Any], gpu: GPURuntime, samples: Sequence[Any]) -> None:
    """Compile kernels, and reserve memory in torch's cache for the batches that exist at the same time.

    A stream of the loader must be current.
    """
    if gpu.memory.exchanges:  # exchanges need all ranks
        return
    assemble = adapter.assembler.assemble_group
    batches, nbytes = assemble(samples[:1], None)
    gpu.learn_size(nbytes)
    at_once = gpu.joined_at_once(gpu.group_size) if adapter.assembler.gathers_groups else 1
    most = min(len(samples), BACKLOG + 2 * at_once, max(2, _RESERVED_BYTES // max(nbytes, 1)))
    for i in range(1, most, at_once):
        batches += assemble(samples[i : min(most, i + at_once)], None)[0]


def make_exchange(
    plan: BatchPlan | None, adapter: Adapter[Any, Any], gpu: GPURuntime, title: str, timeout: float
) -> GPUExchange:
    """Return the exchange of rows for the batches of a loader, with hot rows cached. All ranks call it."""
    from manyhop.features import GPUExchange

    exchange = GPUExchange(title, timeout=timeout)
    fill_cache(plan if adapter.seeds.has_times else None, adapter, gpu, exchange)
    exchange.rest()
    return exchange
