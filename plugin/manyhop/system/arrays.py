"""Tensors as arrays and as bytes, which hold the memory that they show; whether tensors are changed in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import InputError

_MAP_STYLE = {"__getitem__": True, "__len__": True, "__iter__": False, "__array__": False}


def is_map_style(value: Any) -> bool:
    """Return whether a value is read by number and has a length, but cannot be iterated, as datasets of torch."""
    return all(hasattr(value, name) == has for name, has in _MAP_STYLE.items())


def from_array(value: Any) -> Tensor:
    """Return an array, or what numpy makes one of, as a tensor: on the same memory, or a copy where torch has no such.

    Raises:
        TypeError, ValueError: what torch has no numbers for.
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

    Not so where it is sparse, nested or quantized, on ``meta``, or of a subclass of Tensor that wraps others or none,
    such as FakeTensor.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.device.type == "meta":
        return False
    if type(tensor) is Tensor:
        return True
    if tensor.untyped_storage().device.type == "meta":  # a FakeTensor's, whose data_ptr() warns
        return False
    return tensor.numel() == 0 or tensor.data_ptr() != 0


def flat_bytes(tensor: Tensor) -> Tensor:
    """Return ``[nbytes] uint8`` on the tensor's device: its memory where that is contiguous, else a copy in order.

    Raises:
        InputError: a tensor that has no memory.
    """
    if not has_memory(tensor):
        raise InputError(
            f"Expected a dense tensor with memory of its own, got {describe(tensor)}. Convert it with to_dense() or "
            "dequantize(), or make it outside of FakeTensorMode."
        )
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # Strides of tensors of one entry or none may be any, which view(dtype) refuses.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)


def bytes_of(tensor: Tensor) -> memoryview:
    """Return :func:`flat_bytes` of a CPU tensor as something that files read and write, and that holds the tensor."""
    return flat_bytes(tensor).numpy().data


def describe(value: Any) -> str:
    """Return what errors call a value that came: dtype, shape and what is unusual about it."""
    if not isinstance(value, Tensor):
        return f"{value.dtype} {list(value.shape)}" if hasattr(value, "dtype") else f"a {type(value).__name__}"
    kind = "" if type(value) is Tensor else f" of class {type(value).__name__}"
    nested = "nested " if value.is_nested else ""
    layout = "" if value.layout is torch.strided else f" of layout {value.layout}"
    shape = "" if value.is_nested else f" {list(value.shape)}"
    return f"a {nested}tensor{kind} {value.dtype}{shape}{layout} on {value.device}"


def version_of(value: object) -> int:
    """Return the number of changes of a tensor in place, as torch counts them.

    0 for anything else, and for tensors of ``torch.inference_mode()``, whose changes nobody counts.
    """
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0
