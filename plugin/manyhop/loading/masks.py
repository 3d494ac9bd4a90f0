"""Masks where ids belong."""

from __future__ import annotations

import torch
from torch import Tensor

from manyhop.errors import InputError


def check_no_mask(what: str, ids: Tensor) -> None:
    """Raise InputError for a dtype of masks: bool, and uint8, which was torch's before. As ids they mean 0 and 1."""
    if ids.dtype in (torch.bool, torch.uint8):
        otherwise = ", or ids.long() if they are ids" if ids.dtype == torch.uint8 else ""
        raise InputError(
            f"Expected {what} as ids, got {ids.dtype}, a dtype of masks. Pass mask.nonzero().view(-1){otherwise}."
        )
