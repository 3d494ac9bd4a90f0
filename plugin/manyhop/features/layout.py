"""Where the rows of a tensor or an array lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import FeatureError


@dataclass(frozen=True)
class RowLayout:
    """Rows that can be copied as bytes."""

    address: int
    """Of row 0."""

    stride: int
    """Bytes from one row to the next, of any sign."""

    num_rows: int
    row_bytes: int

    tail: tuple[int, ...]
    """The shape of a row."""

    dtype: torch.dtype
    device: torch.device


def row_layout(source: Any, name: str) -> RowLayout | None:
    """The rows of a source along its first dimension; ``None`` where copying bytes is not the same as indexing.

    Raises:
        FeatureError: an array of a dtype that torch does not have.
    """
    if type(source) is Tensor or type(source) is torch.nn.Parameter:
        plain = (
            source.layout is torch.strided
            and source.device.type in ("cpu", "cuda")
            and source.dim() > 0
            and not (source.requires_grad or source.is_quantized or source.is_conj() or source.is_neg())
        )
        if not plain:
            return None
        dtype, device, address = source.dtype, source.device, source.data_ptr()
        strides = [s * dtype.itemsize for s in source.stride()]
    elif type(source) is np.ndarray or type(source) is np.memmap:
        if source.ndim == 0:
            return None
        dtype, device, address = torch_dtype(source, name), _CPU, source.__array_interface__["data"][0]
        strides = list(source.strides)
    else:
        return None
    shape = tuple(source.shape)
    row_bytes = dtype.itemsize
    for n, stride in zip(reversed(shape[1:]), reversed(strides[1:]), strict=True):
        if n > 1 and stride != row_bytes:
            return None
        row_bytes *= n
    return RowLayout(address, strides[0], shape[0], row_bytes, shape[1:], dtype, device)


def torch_dtype(source: Any, name: str) -> torch.dtype:
    """The dtype of an array, as torch names it."""
    dtype = source.dtype
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except (TypeError, ValueError):
        raise FeatureError(
            f"Expected {name} to have a dtype that torch has too, got numpy's {dtype!r}. Convert the array."
        ) from None


_CPU = torch.device("cpu")
