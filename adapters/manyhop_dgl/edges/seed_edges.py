"""Ids of nodes and edges, in any form that DGL takes."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from manyhop.arguments import check_no_mask
from manyhop.errors import InputError
from manyhop.system.arrays import listed


def as_ids(ids: Any, bound: int, what: str) -> tuple[Tensor, bool]:
    """Ids in any form that DGL takes, as ``[n] int64``, and whether it was a single one, not in a tensor.

    Raises:
        InputError: no ids, or ids that are not in ``[0, bound)``.
    """
    single = False
    try:
        if not isinstance(ids, Tensor):
            ids, single = torch.tensor([operator.index(ids)]), True
    except (TypeError, ValueError, RuntimeError):
        try:
            ids = torch.as_tensor(listed(ids))
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"Expected {what} as a tensor of ids, got {type(ids).__name__}.") from None
    if ids.dim() == 0:
        ids = ids.view(1)
    if ids.dim() == 1 and ids.numel() == 0:
        return torch.empty(0, dtype=torch.int64), False
    if ids.dtype == torch.bool:
        if ids.shape != (bound,):
            raise InputError(f"Expected a mask of {what} of shape [{bound}], got {list(ids.shape)}.")
        return ids.nonzero().view(-1), False
    check_no_mask(what, ids)
    if ids.dim() != 1 or ids.is_floating_point() or ids.is_complex():
        raise InputError(f"Expected {what} as integers of shape [n], got {ids.dtype} of shape {list(ids.shape)}.")
    if ids.device.type != "cpu":
        raise InputError(f"Expected {what} on the CPU, where the graph is, got ids on {ids.device}.")
    low, high = (int(x) for x in torch.aminmax(ids))
    if low < 0 or high >= bound:
        raise InputError(f"Expected {what} in [0, {bound}), got {low if low < 0 else high}.")
    return ids.long(), single
