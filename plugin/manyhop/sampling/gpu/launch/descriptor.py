"""The descriptor of a launch, which its kernels read: stamp, keys of the batches, addresses of their seeds."""

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


def write_descriptor(workspace: Workspace, requests: Sequence[NodeRequest]) -> list[Tensor]:
    """Write the descriptor of a launch for its batches. Return the tensors that must outlive the launch."""
    _, stamp = workspace.begin_descriptor()
    types, shape, host = workspace.plan.types, workspace.shape, workspace.host
    descriptor_size = host.descriptor_size
    descriptor = [stamp] + [0] * (descriptor_size - 1)
    address = host.seeds_address
    keep: list[Tensor] = []
    arrays: list[Tensor] = []  # on the host: copied behind the descriptor, all at once

    def put(values: Tensor) -> int:
        nonlocal address
        if values.is_cuda:
            values = values.to(workspace.plan.device, torch.int64).contiguous()
            keep.append(values)
            return values.data_ptr()
        arrays.append(values)
        at: int = address
        address += 8 * values.shape[0]
        return at

    batch, type_ranges, first = _BATCHES, _BATCHES + shape.num_batches * _BATCH, 0
    for request in requests:
        seed, epoch, number = request.key
        if (seed | epoch | number) >> 63:
            seed, epoch, number = map(low_64_bits, request.key)
        descriptor[batch : batch + _BATCH] = seed, epoch, number, first
        for name, seeds in request.seeds.items():
            n = seeds.shape[0]
            type_range = type_ranges + types[name] * _SEEDS
            descriptor[type_range : type_range + 3] = n, put(seeds), first
            if request.time_max is not None:
                descriptor[type_range + _TIME_MAX] = put(request.time_max[name])
            if shape.window:
                no_limit = torch.full_like(seeds, torch.iinfo(torch.int64).min)
                descriptor[type_range + _TIME_MIN] = put(
                    no_limit if request.time_min is None else request.time_min[name]
                )
            first += n
        batch += _BATCH
        type_ranges += len(types) * _SEEDS
    if shape.exclude:
        for at_segment, ids in _excluded(workspace, requests):
            descriptor[at_segment : at_segment + 2] = ids.data_ptr(), ids.numel()
            keep.append(ids)
    host.write_descriptor(*descriptor)
    if len(arrays) == 1:
        seeds = arrays[0].contiguous()
        ctypes.memmove(host.seeds_address, seeds.data_ptr(), address - host.seeds_address)
    elif arrays:
        torch.cat(arrays, out=host.descriptor[descriptor_size : (address - host.descriptor_address) // 8])
    return keep


def _excluded(workspace: Workspace, requests: Sequence[NodeRequest]) -> list[tuple[int, Tensor]]:
    """Return pairs of a position in the descriptor and the sorted ids of edges to exclude, on the device."""
    found, on_host, where = [], [], []
    for request, segments in zip(requests, workspace.extent.segment_of, strict=False):
        for edge_type, r in zip(workspace.plan.edge_types, segments, strict=True):
            ids = (request.exclude or {}).get(edge_type)
            if ids is None or ids.numel() == 0:
                continue
            if ids.is_cuda:
                found.append((workspace.host.excluded_at + 2 * r, torch.sort(ids.to(workspace.plan.device)).values))
            else:
                on_host.append(np.sort(ids.numpy()))
                where.append(workspace.host.excluded_at + 2 * r)
    return found + list(zip(where, upload(on_host, workspace.plan.device), strict=True))
