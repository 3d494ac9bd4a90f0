"""Copies of large host tensors on a GPU, with a progress bar."""

from __future__ import annotations

import torch
from torch import Tensor

from manyhop.system.progress import Progress

_PIECE_BYTES = 256 << 20


def to_device(tensor: Tensor, device: torch.device, title: str) -> Tensor:
    """Return a tensor on a device. Large ones are copied piece by piece, while a progress bar shows how far it is."""
    if tensor.device.type != "cpu" or device.type == "cpu" or tensor.nbytes <= _PIECE_BYTES or tensor.dim() == 0:
        return tensor.to(device)
    there = torch.empty_like(tensor, device=device)
    rows = max(1, _PIECE_BYTES * tensor.shape[0] // tensor.nbytes)
    bar = Progress(f"Copying {title} to {device}", tensor.nbytes)
    try:
        for begin in range(0, tensor.shape[0], rows):
            part = tensor[begin : begin + rows]
            there[begin : begin + rows].copy_(part)
            bar.add(part.nbytes)
    finally:
        bar.close()
    return there
