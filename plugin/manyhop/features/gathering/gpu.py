"""Gather rows by index on a GPU: one launch for all tensors that its kernels can read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from manyhop.features.checks import Checks
from manyhop.features.gathering.cpu import index_by_itself
from manyhop.features.gathering.gpu_plan import PLANS
from manyhop.features.gathering.staged import gather_staged
from manyhop.features.requests import RowRequest
from manyhop.features.sources.cached import CachedRows


def gather_on_gpu(
    requests: Sequence[RowRequest], device: torch.device, *, threads: int = 1, checks: Checks | None = None
) -> list[Any]:
    """What :func:`manyhop.features.gather` does where all indices lie on one GPU.

    Args:
        requests: with checked indices.
        device: where the indices lie; a CPU where triton interprets its kernels.
        threads: how many threads copy rows that the GPU cannot read.
        checks: collects row numbers that the kernel checks; ``None``: wait for it here.
    """
    if device.type == "cuda" and torch._C._cuda_getDevice() != device.index:
        with torch.cuda.device(device):
            return gather_on_gpu(requests, device, threads=threads, checks=checks)
    plan = PLANS.of(requests, device)
    results: list[Any] = [None] * len(requests)
    collected = checks
    for launch in plan.launches:
        suspect = launch(requests, results)
        if suspect is not None:  # noted at once: its flag has to outlive the kernel, whatever fails below
            collected = Checks() if collected is None else collected
            collected.add(suspect)
    if plan.staged:
        gather_staged(requests, plan.staged, results, device, threads)
    for i in plan.others:
        request = requests[i]
        if isinstance(request.source, CachedRows):
            request = replace(request, source=request.source.source)
        rows = index_by_itself(request, request.index)
        results[i] = rows.to(device) if isinstance(rows, Tensor) else rows
    if checks is None and collected is not None:
        collected.ask(wait=True)
    return results
