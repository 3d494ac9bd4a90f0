"""Tensors and arrays: conversions, memory, descriptions, and the one record of what is known of each."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from manyhop.errors import FeatureError, InputError

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


class RowLayout(NamedTuple):
    """Rows that can be copied as bytes."""

    address: int
    """Address of row 0."""
    stride: int
    """Bytes from one row to the next, of any sign."""
    num_rows: int
    row_bytes: int
    tail: tuple[int, ...]
    """The shape of a row."""
    dtype: torch.dtype
    device: torch.device


def row_layout(source: Any, name: str) -> RowLayout | None:
    """Return the rows of a source along its first dimension; ``None`` if copying bytes is not the same as indexing."""
    if type(source) is Tensor or type(source) is torch.nn.Parameter:
        if source.layout is not torch.strided or not (source.is_cpu or source.is_cuda) or source.dim() == 0:
            return None
        if source.requires_grad or source.is_quantized or source.is_conj() or source.is_neg():
            return None
        dtype, device, address = source.dtype, source.device, source.data_ptr()
        strides, unit = source.stride(), dtype.itemsize
    elif type(source) is np.ndarray or type(source) is np.memmap:
        if source.ndim == 0:
            return None
        dtype, device, address = torch_dtype(source, name), torch.device("cpu"), source.__array_interface__["data"][0]
        strides, unit = source.strides, 1
    else:
        return None
    shape = tuple(source.shape)
    row_bytes = dtype.itemsize
    for i in range(len(shape) - 1, 0, -1):
        if shape[i] > 1 and strides[i] * unit != row_bytes:
            return None
        row_bytes *= shape[i]
    return RowLayout(address, strides[0] * unit, shape[0], row_bytes, shape[1:], dtype, device)


def torch_dtype(source: Any, name: str) -> torch.dtype:
    """Return the dtype of an array, as torch names it."""
    dtype = source.dtype
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except (TypeError, ValueError):
        raise FeatureError(
            f"Expected {name} to have a dtype that torch has too, got numpy's {dtype!r}. Convert the array."
        ) from None


class Known:
    """Facts about a tensor, an array, rows in parts, a topology or a graph, as long as that exists."""

    __slots__ = ("checksum", "compressed", "copies", "engines", "file_cache", "held", "store_place", "tables")

    def __init__(self) -> None:
        self.checksum: tuple[int, int] | None = None
        """A version of the tensor, and the checksum of its values."""
        self.compressed: tuple[int, Any, Any] | None = None
        """A version of an edge list, and its columns in CSC."""
        self.copies: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()
        """The same elsewhere, by place, as long as it is used."""
        self.engines: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        """The engines that sample a placed graph, by spec."""
        self.file_cache: Any = None
        """The rows of a mapped file that memory keeps."""
        self.held: Any = None
        """The place of rows that belong to a store."""
        self.store_place: weakref.ref[Any] | None = None
        """The ``TopologyPlace`` of the store of a topology."""
        self.tables: Any = None
        """Topologies built for a graph."""


def known(value: Any) -> Known:
    """Return the record of a value; create it if needed."""
    record: Known = known_if_any(value) or _records.setdefault(value, Known())  # type: ignore[no-untyped-call]
    return record


def known_if_any(value: Any) -> Known | None:
    """Return the record of a value; ``None``: nothing is known of it."""
    try:
        record: Known | None = _records.get(value)  # type: ignore[no-untyped-call]
    except TypeError:  # nothing refers weakly to a value of this class
        return None
    return record


def records() -> list[Known]:
    """Return all records."""
    return list(_records.values())  # type: ignore[no-untyped-call]


_records: WeakIdKeyDictionary = WeakIdKeyDictionary()


class Version:
    """A tensor or an array in its current state."""

    def __init__(self, value: Any) -> None:
        self._source = value
        self._version = value._version if isinstance(value, Tensor) else 0

    @property
    def of_tensor(self) -> tuple[Tensor, int] | None:
        """Return the tensor and its version, as torch counts it; ``None`` for arrays."""
        return (self._source, self._version) if isinstance(self._source, Tensor) else None

    def is_current(self) -> bool:
        """Return whether it has not been changed in place (changes of arrays are not detected)."""
        return not isinstance(self._source, Tensor) or self._source._version == self._version
