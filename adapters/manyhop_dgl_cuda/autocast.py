"""Autocast around message passing: features are cast to the lower precision, and kernels run without casts of torch."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from manyhop_dgl_cuda.where import on_torch


def cast(*args: Any) -> tuple[Any, ...]:
    """Cast tensors of floating point to autocast's dtype, float64 excepted: ``_cast_if_autocast_enabled`` of DGL."""
    first = args[0] if isinstance(args[0], Tensor) else next(arg for arg in args if isinstance(arg, Tensor))
    device = first.device.type
    if not torch.is_autocast_enabled(device):
        return args
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        arg.to(dtype) if isinstance(arg, Tensor) and arg.is_floating_point() and arg.dtype != torch.float64 else arg
        for arg in args
    )


def disabled() -> ExitStack:
    """Switch autocast off for a while, where it is on: ``_disable_autocast_if_enabled`` of DGL."""
    stack = ExitStack()
    for device in ("cpu", "cuda"):
        if on_torch(torch.device(device)) and torch.is_autocast_enabled(device):
            stack.enter_context(torch.autocast(device, enabled=False))
    return stack
