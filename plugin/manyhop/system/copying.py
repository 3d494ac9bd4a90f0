"""Copies of large tensors, with a progress bar."""

from __future__ import annotations

from contextlib import closing

import torch
from torch import Tensor

from manyhop.system.progress import Progress

_PIECE_BYTES = 256 << 20


def to_device(tensor: Tensor, device: torch.device | str, title: str) -> Tensor:
    """Return a tensor on a device, or in page-locked memory (``"pinned"``).

    Large ones are copied to a GPU piece by piece, while a progress bar shows how far it is.
    """
    if device == "pinned":
        return tensor.pin_memory()
    device = torch.device(device)
    if tensor.device.type != "cpu" or device.type == "cpu" or tensor.nbytes <= _PIECE_BYTES or tensor.dim() == 0:
        return tensor.to(device)
    there = torch.empty_like(tensor, device=device)
    copy_rows(there, tensor, f"Copying {title} to {device}")
    return there


def copy_rows(target: Tensor, source: Tensor, title: str) -> None:
    """Copy ``source [num_rows, ...]`` to ``target`` of the same shape, piece by piece."""
    rows = max(1, _PIECE_BYTES * source.shape[0] // max(1, source.nbytes))
    with closing(Progress(title, source.nbytes)) as bar:
        for begin in range(0, source.shape[0], rows):
            part = source[begin : begin + rows]
            target[begin : begin + rows].copy_(part)
            bar.add(part.nbytes)
