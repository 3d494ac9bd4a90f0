"""numpy's arrays as tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def as_tensor(value: Any) -> Tensor:
    """A tensor or an array as a tensor without a gradient, on the same memory.

    An array that may not be written to (a memory map, a column of pandas) is copied: torch has no such tensors, and
    warns of them.
    """
    if isinstance(value, Tensor):
        return value.detach()
    return torch.from_numpy(value if value.flags.writeable else value.copy())
