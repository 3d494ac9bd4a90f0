"""Tensors as arrays and as bytes, which hold the memory that they show; whether tensors are changed in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manyhop.errors import InputError

_MAP_STYLE = {"__getitem__": True, "__len__": True, "__iter__": False, "__array__": False}


def as_tensor(value: Any) -> Tensor:
    """A tensor or an array as a tensor without a gradient, on the same memory.

    An array that may not be written to (a memory map, a column of pandas) is copied: torch has no such tensors, and
    warns of them.
    """
    if isinstance(value, Tensor):
        return value.detach()
    return torch.from_numpy(value if value.flags.writeable else value.copy())


def is_map_style(value: Any) -> bool:
    """Return whether a value is read by number and has a length, but cannot be iterated, as datasets of torch."""
    return all(hasattr(value, name) == has for name, has in _MAP_STYLE.items())


def listed(value: Any) -> Any:
    """Return the items of a map-style dataset as a list; any other value as it is.

    torch and numpy would read a dataset until IndexError, which it need not raise.
    """
    return [value[i] for i in range(len(value))] if is_map_style(value) else value


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
