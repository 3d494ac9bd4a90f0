"""Conversions between tensors, arrays and bytes, and descriptions of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import InputError

_MAP_STYLE = {"__getitem__": True, "__len__": True, "__iter__": False, "__array__": False}


def is_map_style(value: Any) -> bool:
    """Return whether a value has a length and items by number, but no iterator, like datasets of torch."""
    return all(hasattr(value, name) == has for name, has in _MAP_STYLE.items())


def from_array(value: Any) -> Tensor:
    """Return an array, or a value that numpy converts to one, as a tensor. It is copied only if torch requires it.

    Raises:
        TypeError, ValueError: the value has no dtype of torch.
    """
    if hasattr(value, "__cuda_array_interface__"):
        return torch.as_tensor(value)
    if is_map_style(value):  # numpy would read it until IndexError, which a dataset need not raise
        value = [value[i] for i in range(len(value))]
    array = np.asarray(value)
    if array.size == 0 and not hasattr(value, "dtype"):
        array = array.astype(np.int64)  # a list without entries has no dtype
    try:
        return torch.from_numpy(array if array.flags.writeable else array.copy())  # torch has no read-only tensors
    except ValueError:  # the byte order, or strides
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))


def has_memory(tensor: Tensor) -> bool:
    """Return whether the entries of a tensor are numbers of its dtype in memory.

    False for sparse, nested and quantized tensors, on ``meta``, and for wrappers such as FakeTensor.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.device.type == "meta":
        return False
    if type(tensor) is Tensor:
        return True
    if tensor.untyped_storage().device.type == "meta":  # data_ptr() of a FakeTensor warns
        return False
    return tensor.numel() == 0 or tensor.data_ptr() != 0


def flat_bytes(tensor: Tensor) -> Tensor:
    """Return ``[nbytes] uint8`` on the tensor's device: its memory if that is contiguous, otherwise a copy.

    Raises:
        InputError: a tensor that has no memory.
    """
    if not has_memory(tensor):
        raise InputError(
            f"Expected a dense tensor with its own memory, got {describe(tensor)}. Convert it with to_dense() or "
            "dequantize(), or create it outside of FakeTensorMode."
        )
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # view(dtype) rejects arbitrary strides, which tensors of at most one entry may have.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)


def bytes_of(tensor: Tensor) -> memoryview:
    """Return :func:`flat_bytes` of a CPU tensor as a buffer for files. It keeps the tensor alive."""
    return flat_bytes(tensor).numpy().data


def describe(value: Any) -> str:
    """Describe a value in an error message: dtype, shape, device."""
    if not isinstance(value, Tensor):
        return f"{value.dtype} {list(value.shape)}" if hasattr(value, "dtype") else f"a {type(value).__name__}"
    kind = "" if type(value) is Tensor else f" of class {type(value).__name__}"
    nested = "nested " if value.is_nested else ""
    layout = "" if value.layout is torch.strided else f" of layout {value.layout}"
    shape = "" if value.is_nested else f" {list(value.shape)}"
    return f"a {nested}tensor{kind} {value.dtype}{shape}{layout} on {value.device}"


def version_of(value: object) -> int:
    """Return the number of in-place changes that torch has counted; 0 for other objects and inference tensors."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0
