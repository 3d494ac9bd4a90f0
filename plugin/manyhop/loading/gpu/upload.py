"""Tensors of the host, sent to a GPU without waiting."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def upload(tensors: Sequence[Tensor | None], device: torch.device) -> list[Tensor | None]:
    """Return the tensors on the device, by one copy per dtype that the host does not wait for."""
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
