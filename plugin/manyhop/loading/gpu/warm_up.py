"""Warm up a loader on a GPU: compile kernels, reserve memory and fill caches before the first batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from manyhop.features.hot.files import not_counting
from manyhop.loading.adapter import Adapter, LoaderView
from manyhop.loading.gpu.compile_ahead import compiling_gathers, compiling_samplers
from manyhop.loading.gpu.groups import InFlightGroup
from manyhop.loading.gpu.hot import fill_cache
from manyhop.loading.gpu.runtime import JOINED, GPURuntime
from manyhop.loading.gpu.samples import BACKLOG
from manyhop.loading.pipeline import BatchPlan
from manyhop.sampling import BatchKey
from manyhop.system.triton_compiler import showing_compilation

if TYPE_CHECKING:
    from manyhop.features import GPUExchange

_WARM_UPS = 3
_RESERVED_BYTES = 1 << 30  # largest reservation for batches before the first one


def prepare(loader: LoaderView, adapter: Adapter[Any, Any], gpu: GPURuntime) -> None:
    """Do the work that the first batch would have to wait for."""
    plan = loader.plan if adapter.seeds.has_times else None
    with gpu.streams.on_stream(), not_counting():
        if not gpu.memory.exchanges:
            fill_cache(plan, adapter, gpu, None)
        gpu.drain()
        if plan is not None and plan.num_items > 0 and gpu.sampling is not None:
            if gpu.lookup is None:
                plan.indices(0, 0)  # imports numba, which is not safe in two threads at once
            with showing_compilation(), compiling_gathers(adapter, gpu, JOINED):
                _warm_up(loader, plan, adapter, gpu)
        gpu.drain()
    gpu.streams.synchronize()
    gpu.streams.forget_times()
    gpu.memory.take_cache_counts()  # the batches are not the user's


def _warm_up(loader: LoaderView, plan: BatchPlan, adapter: Adapter[Any, Any], gpu: GPURuntime) -> None:
    """Sample the first batches of epoch 0 and drop them, to learn sizes and reserve memory."""
    batches = range(min(len(plan), gpu.group_size))
    if not batches:
        return
    inputs: Sequence[Any]
    if gpu.lookup is not None:
        with compiling_samplers(plan, adapter, gpu):
            inputs = gpu.lookup.of(plan, 0, batches)
    else:
        inputs = adapter.seeds.inputs([torch.from_numpy(plan.indices(0, batch)) for batch in batches])
    keys = [BatchKey(0, 0, batch) for batch in batches]
    if gpu.collective:
        groups = [InFlightGroup(gpu, adapter, inputs, keys)]
        groups[0].take(0)
        if loader.sizes_are_known:
            reserve(adapter, gpu, [groups[0].take(k) for k in range(len(groups[0]))])
        return
    ahead = 2 if gpu.needs_no_threads(loader, adapter) else 2 * max(1, loader.num_workers)
    for _ in range(_WARM_UPS):  # the first one learns sizes
        groups = [InFlightGroup(gpu, adapter, inputs, keys) for _ in range(ahead)]
        for group in groups:
            group.take(0)
    last = len(plan) % gpu.group_size  # a smaller group may need workspaces of its own
    if 0 < last < len(batches):
        InFlightGroup(gpu, adapter, inputs[:last], keys[:last]).take(0)
    if loader.sizes_are_known:
        reserve(adapter, gpu, [groups[0].take(k) for k in range(len(groups[0]))])


def reserve(adapter: Adapter[Any, Any], gpu: GPURuntime, samples: Sequence[Any]) -> None:
    """Compile kernels, and reserve memory in torch's cache for the batches that exist at the same time.

    Args:
        samples: samples of some batches.

    Call it with a stream of the loader current.
    """
    if gpu.memory.exchanges:  # exchanges take all ranks
        return
    join = adapter.assembler.join
    batches, nbytes = join(samples[:1], None)
    gpu.learn_size(nbytes)
    at_once = gpu.joined_at_once(gpu.group_size) if adapter.assembler.joins else 1
    most = min(len(samples), BACKLOG + 2 * at_once, max(2, _RESERVED_BYTES // max(nbytes, 1)))
    for i in range(1, most, at_once):
        batches += join(samples[i : min(most, i + at_once)], None)[0]


def make_exchange(
    plan: BatchPlan | None, adapter: Adapter[Any, Any], gpu: GPURuntime, title: str, timeout: float
) -> GPUExchange:
    """Return the exchange of rows for the batches of a loader, with hot rows cached. All ranks call it."""
    from manyhop.features import GPUExchange

    exchange = GPUExchange(title, timeout=timeout)
    fill_cache(plan if adapter.seeds.has_times else None, adapter, gpu, exchange)
    exchange.rest()
    return exchange
