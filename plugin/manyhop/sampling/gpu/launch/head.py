"""What the host tells a launch: its stamp, the keys of its batches, where their seeds are."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from manyhop.sampling.contract import NodeRequest
from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.launch.workspace import Workspace
from manyhop.sampling.gpu.transfer import low_64_bits, upload

_BATCHES, _BATCH, _SEEDS = t.BATCHES.value, t.BATCH_COLUMNS.value, t.SEED_COLUMNS.value
_TIME_MAX, _TIME_MIN = t.TIME_MAX.value, t.TIME_MIN.value


def tell(workspace: Workspace, requests: Sequence[NodeRequest]) -> list[Tensor]:
    """Tell a launch its batches; returns tensors that must live as long as the launch."""
    memory, stamp = workspace.begin_head()
    types, shape, host = workspace.plan.types, workspace.shape, workspace.host
    head_size = host.head_size
    head = [stamp] + [0] * (head_size - 1)
    at, begin = head_size, host.head_address
    keep: list[Tensor] = []
    arrays: list[Tensor] = []  # of the host: they go into the head all at once

    def put(values: Tensor) -> int:
        nonlocal at
        if values.is_cuda:
            values = values.to(workspace.plan.device, torch.int64).contiguous()
            keep.append(values)
            return values.data_ptr()
        arrays.append(values)
        address: int = begin + 8 * at
        at += values.shape[0]
        return address

    batch, regions, first = _BATCHES, _BATCHES + shape.num_batches * _BATCH, 0
    for request in requests:
        seed, epoch, number = request.key
        if (seed | epoch | number) >> 63:
            seed, epoch, number = map(low_64_bits, request.key)
        head[batch : batch + _BATCH] = seed, epoch, number, first
        for name, seeds in request.seeds.items():
            n = seeds.shape[0]
            region = regions + types[name] * _SEEDS
            head[region : region + 3] = n, put(seeds), first
            if request.time_max is not None:
                head[region + _TIME_MAX] = put(request.time_max[name])
            if shape.window:
                no_limit = torch.full_like(seeds, torch.iinfo(torch.int64).min)
                head[region + _TIME_MIN] = put(no_limit if request.time_min is None else request.time_min[name])
            first += n
        batch += _BATCH
        regions += len(types) * _SEEDS
    if shape.exclude:
        for at_row, ids in _excluded(workspace, requests):
            head[at_row : at_row + 2] = ids.data_ptr(), ids.numel()
            keep.append(ids)
    memory[:head_size] = head
    if len(arrays) == 1:
        seeds = arrays[0].contiguous()
        ctypes.memmove(begin + 8 * head_size, seeds.data_ptr(), 8 * (at - head_size))
    elif arrays:
        torch.cat(arrays, out=host.head[head_size:at])
    return keep


def _excluded(workspace: Workspace, requests: Sequence[NodeRequest]) -> list[tuple[int, Tensor]]:
    """Where in the head of a launch which sorted ids of edges, on the device, are told."""
    found, on_host, where = [], [], []
    for request, rows in zip(requests, workspace.extent.row_of, strict=False):
        for edge_type, r in zip(workspace.plan.edge_types, rows, strict=True):
            ids = (request.exclude or {}).get(edge_type)
            if ids is None or ids.numel() == 0:
                continue
            if ids.is_cuda:
                found.append((workspace.host.excluded_at + 2 * r, torch.sort(ids.to(workspace.plan.device)).values))
            else:
                on_host.append(np.sort(ids.numpy()))
                where.append(workspace.host.excluded_at + 2 * r)
    return found + list(zip(where, upload(on_host, workspace.plan.device), strict=True))
