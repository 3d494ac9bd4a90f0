"""Shapes of features as DGL takes them: scalars per row, and broadcasting behind the first dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

import torch
from dgl import DGLError
from torch import Tensor

_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "dot": lambda left, right: (left * right).sum(-1, keepdim=True),
}


def aligned(left: Tensor | None, right: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Operands of equally many dimensions, at least two: ``[n, 8]`` beside ``[n, 4, 8]`` becomes ``[n, 1, 8]``."""
    left, right = (t.unsqueeze(-1) if t is not None and t.dim() == 1 else t for t in (left, right))
    dims = max(t.dim() for t in (left, right) if t is not None)
    left, right = (None if t is None else _padded(t, dims) for t in (left, right))
    return left, right


def binary(op: str, left: Tensor, right: Tensor | None) -> Tensor:
    """Apply an operator of DGL to aligned operands, row by row.

    Raises:
        DGLError: an unknown operator, or shapes that do not broadcast.
    """
    if op not in _BINARY or right is None:
        raise DGLError(f"Expected an operator of {', '.join(_BINARY)}, copy_lhs, copy_rhs with operands, got {op!r}.")
    pairs = list(zip(left.shape[1:], right.shape[1:], strict=True))
    if any(a != b and 1 not in (a, b) for a, b in pairs) or (op == "dot" and left.shape[-1] != right.shape[-1]):
        raise DGLError(
            f"Expected features whose shapes broadcast, got {tuple(left.shape[1:])} and {tuple(right.shape[1:])}. "
            "Reshape one of them."
        )
    return _BINARY[op](left, right)


@overload
def without_last(value: Tensor, scalar: bool) -> Tensor: ...
@overload
def without_last(value: None, scalar: bool) -> None: ...
def without_last(value: Tensor | None, scalar: bool) -> Tensor | None:
    """Remove the last dimension, of size 1, if all operands were scalars per row."""
    return value.squeeze(-1) if scalar and value is not None else value


def _padded(t: Tensor, dims: int) -> Tensor:
    return t.view(t.shape[0], *[1] * (dims - t.dim()), *t.shape[1:]) if t.dim() < dims else t
