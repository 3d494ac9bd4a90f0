"""Copies of the user's tensors where GPUs read them, one for all loaders, and checksums that prove them current."""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Collection, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.arguments import as_tensor
from manyhop.memory.places import Place
from manyhop.sampling.random import as_u64, below, mix
from manyhop.system.arrays import Version, flat_bytes, from_array, known, known_if_any, records
from manyhop.system.progress import to_device

WHOLE = 16 << 20  # bytes: about 1.5 ms
WHOLE_ONCE = 256 << 20  # about 20 ms, where tables of a graph would take seconds
_PLACES, _RUN = 1024, 4  # adjacent entries are in one page
_BLOCK = 1024  # words per row of the product: two thirds of the speed of a plain sum
_CHUNK = 4 << 20  # words that a GPU multiplies at a time


def checksum(values: Tensor | np.ndarray[Any, Any], *, whole: int = WHOLE) -> int:
    """Return a 32-bit checksum of dtype, shape and entries.

    Every entry counts if the tensor has at most ``whole`` bytes, 64 KiB or more. From larger ones, 4096 entries are
    read, at positions that depend on the number of entries alone: the first four, the last four, and runs of four
    spread evenly between, so that memory-mapped files are read at 1024 places.
    """
    if isinstance(values, np.ndarray):
        shape = values.shape
        few = values if values.nbytes <= whole else values[_sampled(shape)]
        entries = from_array(few)
        return _of_entries(entries, entries.dtype, shape)
    return _checksum(values, values.dtype, whole // values.element_size())


def checksum_of_values(tensor: Tensor) -> int:
    """Return a 32-bit checksum of shape and values, regardless of the dtype that stores them.

    As :func:`checksum`; integers count as int64 and other numbers as float64. Computed once per tensor and version.
    """
    version = -1 if tensor.is_inference() else tensor._version  # changes of such a tensor are not counted
    record = known(tensor)
    found = record.checksum
    if found is None or found[0] != version or version < 0:
        wide = torch.float64 if tensor.is_floating_point() else torch.int64
        found = record.checksum = version, _checksum(tensor, wide, WHOLE // wide.itemsize)
    return found[1]


def _checksum(tensor: Tensor, dtype: torch.dtype, most: int) -> int:
    """Return the checksum of entries as a dtype: of all, or of samples if there are more than ``most``."""
    tensor = tensor.detach()
    if tensor.numel() <= most:
        return _of_entries(tensor, dtype, tensor.shape)
    at = tuple(torch.from_numpy(index).to(tensor.device) for index in _sampled(tensor.shape))
    return _of_entries(tensor[at], dtype, tensor.shape)


def _of_entries(entries: Tensor, dtype: torch.dtype, shape: Sequence[int]) -> int:
    kind = f"{dtype} {list(shape)}".encode()
    return zlib.crc32(_digest(flat_bytes(entries.to(dtype))), zlib.crc32(kind))


def _sampled(shape: Sequence[int]) -> tuple[npt.NDArray[np.int64], ...]:
    """Return the indices of the entries that stand for a large tensor, one array per dimension."""
    num_entries = math.prod(shape)
    length = num_entries // _PLACES
    place = np.arange(_PLACES)
    begin = place * length + below(mix(as_u64(place + 1)), length - _RUN + 1)  # not in step with rows or types
    begin[0], begin[-1] = 0, num_entries - _RUN
    return np.unravel_index((begin[:, None] + np.arange(_RUN)).ravel(), tuple(shape))


def _digest(data: Tensor) -> bytes:
    """Return few bytes unchanged; of many, the products of blocks, and the last ones."""
    if data.data_ptr() % 8:
        data = data.clone()
    num_blocks = data.numel() // (8 * _BLOCK)
    words, rest = data[: num_blocks * 8 * _BLOCK], data[num_blocks * 8 * _BLOCK :]
    found = rest.cpu().numpy().tobytes()
    if num_blocks:
        found += _products(words.view(torch.int64).view(-1, _BLOCK)).cpu().numpy().tobytes()
    return found


def _products(blocks: Tensor) -> Tensor:
    """Return ``[num_blocks]`` products with odd numbers, modulo 2^64: a word that changes changes its product."""
    factors = torch.from_numpy((mix(as_u64(np.arange(1, _BLOCK + 1))) | np.uint64(1)).view(np.int64)).to(blocks.device)
    if blocks.device.type == "cpu":
        return blocks @ factors
    rows = _CHUNK // _BLOCK  # no GPU multiplies matrices of integers
    return torch.cat([(part * factors).sum(1) for part in torch.split(blocks, rows)])


class Kept(Version):
    """A tensor or an array whose rows reside elsewhere as well: once for all loaders of the process."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._checksum = checksum(value, whole=WHOLE_ONCE)

    @classmethod
    def find(cls, value: Any, where: torch.device | Place, *, compare: bool = True) -> Self | None:
        """Return the copy of a tensor's current values; ``compare``: compare checksums as well."""
        record = known_if_any(value)
        found = None if record is None else record.copies.get(where)
        if not isinstance(found, cls) or found._source is not value or not found.is_current():
            return None
        return found if not compare or found._checksum == checksum(value, whole=WHOLE_ONCE) else None

    def keep(self, where: torch.device | Place) -> Self:
        """Let :meth:`find` return it as long as it is used."""
        known(self._source).copies[where] = self
        return self


class Copy(Kept):
    """A copy of a tensor on a GPU, with its source."""

    def __init__(self, value: Any, device: torch.device) -> None:
        super().__init__(value)
        self.there = to_device(as_tensor("a feature", value).detach(), device, "features")

    @staticmethod
    def of(value: Any, device: torch.device) -> Copy:
        """Return the copy of a tensor on a device: an existing one, if there is one of the values that it has now."""
        with _lock:
            return Copy.find(value, device) or Copy(value, device).keep(device)


_lock = threading.RLock()


def forget(places: Collection[Place]) -> None:
    """Drop all copies in these places."""
    for record in records():
        for key in list(record.copies):
            if (key[-1] if isinstance(key, tuple) else key) in places:  # of topologies: the GPU and the place
                record.copies.pop(key, None)


def is_movable(value: Any, device: torch.device, *, also_there: bool = False) -> bool:
    """Return whether rows may be read from a copy elsewhere: dense tensors and arrays that the GPU does not hold yet.

    ``also_there``: include tensors that the GPU holds.
    """
    if type(value) is Tensor or type(value) is torch.nn.Parameter:
        elsewhere = value.device.type == "cpu" or (also_there and value.device == device)
        return elsewhere and value.layout is torch.strided and value.dim() > 0 and not value.requires_grad
    return isinstance(value, np.ndarray) and value.ndim > 0
