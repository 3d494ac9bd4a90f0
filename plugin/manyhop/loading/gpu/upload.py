"""Asynchronous copies of host tensors to a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def upload(tensors: Sequence[Tensor | None], device: torch.device) -> list[Tensor | None]:
    """Copy tensors to the device, by one asynchronous copy per dtype."""
    results = list(tensors)
    by_dtype: dict[torch.dtype, list[int]] = {}
    for i, tensor in enumerate(tensors):
        if tensor is not None and tensor.device != device:
            by_dtype.setdefault(tensor.dtype, []).append(i)
    for dtype, positions in by_dtype.items():
        parts = [tensor for i in positions if (tensor := tensors[i]) is not None]
        sizes = [part.numel() for part in parts]
        staging = torch.empty(sum(sizes), dtype=dtype, pin_memory=device.type == "cuda")
        torch.cat([part.reshape(-1) for part in parts], out=staging)
        sent = torch.split(staging.to(device, non_blocking=True), sizes)
        for i, part, flat in zip(positions, parts, sent, strict=True):
            results[i] = flat.view(part.shape)
    return results
