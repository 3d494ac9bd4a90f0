"""Names of contents, by which processes of a node recognise that they have the same."""

from __future__ import annotations

import torch
from torch import Tensor

from manyhop.memory import mapped_files, segments
from manyhop.system.arrays import version_of


def identity(tensor: Tensor) -> str | None:
    """Return a name of a tensor's content for all processes of the node; ``None``: it is in private memory."""
    kind = f"{tensor.dtype} {tuple(tensor.shape)}"
    if tensor.numel() == 0:
        return kind
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return None
    place = segments.where(tensor.data_ptr()) or mapped_files.where(tensor.data_ptr())
    if place is None:
        return None
    # Another name where this process has changed it by operations of torch, such as x[i] = y.
    return f"{kind} {tensor.stride()} at {place[1]} of {place[0]}, version {version_of(tensor)}"
