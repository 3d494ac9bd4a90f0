"""Tensors whose memory GPUs read by themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.features import is_pinned, pin

_PAGES_OF_ITS_OWN = (
    1 << 26
)  # bytes from which on no other tensor lies in the same pages; malloc has them from 32 MiB on


def pinned(tensor: Tensor) -> Tensor:
    """A tensor of the CPU in pinned memory: itself, pinned where it is, or, if it is small, a copy.

    Whole pages are pinned in place. A small tensor shares its pages with others, which CUDA would then refuse to copy.

    Raises:
        InputError: there is no GPU.
        CapacityError: the system does not let this process pin as much memory.
    """
    if tensor.device.type != "cpu":
        return tensor
    if not torch.cuda.is_available():
        raise InputError("Expected a CUDA device to pin memory for, found none. Do not pin on this machine.")
    if is_pinned(tensor):
        return tensor
    if tensor.nbytes < _PAGES_OF_ITS_OWN:
        return tensor.pin_memory()
    pin(tensor)
    return tensor
