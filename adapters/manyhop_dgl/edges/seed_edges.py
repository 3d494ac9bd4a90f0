"""Ids of nodes and edges, in any form that DGL takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop import arguments
from manyhop.arguments import as_tensor
from manyhop.errors import InputError


def as_ids(ids: Any, bound: int, what: str) -> tuple[Tensor, bool]:
    """Ids in any form that DGL takes, as ``[n] int64``, and whether it was a single one, not in a tensor.

    Raises:
        InputError: no ids, or ids that are not in ``[0, bound)``.
    """
    single = not isinstance(ids, Tensor | np.ndarray) and hasattr(ids, "__index__")
    tensor = as_tensor(what, ids)
    if tensor.dim() == 0:
        tensor = tensor.view(1)
    if tensor.dtype == torch.bool:
        if tensor.shape != (bound,):
            raise InputError(f"Expected a mask of {what} of shape [{bound}], got {list(tensor.shape)}.")
        return tensor.nonzero().view(-1), False
    if tensor.device.type != "cpu":
        raise InputError(f"Expected {what} on the CPU, where the graph is, got ids on {tensor.device}.")
    return arguments.as_ids(what, tensor, bound).long(), single
