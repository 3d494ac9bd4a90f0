"""Hot rows that a loader's GPU caches, found by sampling the first batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from manyhop.features import VISITS_PER_ROW, DistributedRows, RowRequest, Visits, keep_hot
from manyhop.loading.adapter import Adapter
from manyhop.loading.gpu.memory import row_bytes
from manyhop.loading.gpu.runtime import GPURuntime
from manyhop.loading.keys import BatchContext
from manyhop.loading.pipeline import BatchPlan
from manyhop.sampling import BatchKey

if TYPE_CHECKING:
    from manyhop.features import GPUExchange

_MOST_BATCHES = 64


def fill_cache(
    plan: BatchPlan | None, adapter: Adapter[Any, Any], gpu: GPURuntime, exchange: GPUExchange | None
) -> None:
    """Sample the first batches of epoch 0, and cache the rows that they read most often.

    All ranks call it if they ``exchange`` rows. Without a ``plan``, a sampler of the user defines the batches.
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

    for batch in range(min(len(plan), _MOST_BATCHES)):
        if requested >= VISITS_PER_ROW * wanted:
            break
        positions = torch.from_numpy(plan.few_indices(0, batch))
        with BatchContext(BatchKey(0, 0, batch), None), gpu.intercepting_gathers(record):
            adapter.assembler.join([adapter.seeds.sample(positions)], None)
    if exchange is not None:
        exchange.keep(remote.hottest(wanted))
    gpu.memory.cache(keep_hot(local.hottest(wanted), gpu.device))
