"""Checksums of tensors that cost about a millisecond, the same in every process and on every device."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.memory.known import known
from manyhop.sampling.random import as_u64, below, mix
from manyhop.system.arrays import flat_bytes, from_array

WHOLE = 16 << 20  # bytes: about 1.5 ms
WHOLE_ONCE = 256 << 20  # about 20 ms, where tables of a graph would take seconds
_PLACES, _RUN = 1024, 4  # entries beside each other come from one page
_BLOCK = 1024  # words per row of the product: two thirds of the speed of a plain sum
_CHUNK = 4 << 20  # words that a GPU multiplies at a time


def checksum(values: Tensor | np.ndarray[Any, Any], *, whole: int = WHOLE) -> int:
    """Return a 32-bit checksum of dtype, shape and entries.

    Every entry counts where the tensor has at most ``whole`` bytes. From larger ones, 4096 entries are read, at
    positions that depend on the number of entries alone: the first four, the last four, and runs of four spread evenly
    between, so that memory-mapped files are read at 1024 places.

    Args:
        values: a dense tensor, of any shape and dtype, on any device; or an array.
        whole: bytes, 64 KiB or more.
    """
    if isinstance(values, np.ndarray):
        shape = values.shape
        few = values if values.nbytes <= whole else values[_sampled(shape)]
        entries = from_array(few)
        return _of_entries(entries, entries.dtype, shape)
    return _checksum(values, values.dtype, whole // values.element_size())


def checksum_of_values(tensor: Tensor) -> int:
    """Return a 32-bit checksum of shape and values, whatever the dtype that stores them.

    As :func:`checksum`; integers count as int64 and other numbers as float64. Computed once per tensor and version.
    """
    version = -1 if tensor.is_inference() else tensor._version  # nobody counts the changes of such a tensor
    record = known(tensor)
    found = record.checksum
    if found is None or found[0] != version or version < 0:
        wide = torch.float64 if tensor.is_floating_point() else torch.int64
        found = record.checksum = version, _checksum(tensor, wide, WHOLE // wide.itemsize)
    return found[1]


def _checksum(tensor: Tensor, dtype: torch.dtype, most: int) -> int:
    """Of entries as a dtype: of all of them, if there are at most so many."""
    tensor = tensor.detach()
    if tensor.numel() <= most:
        return _of_entries(tensor, dtype, tensor.shape)
    at = tuple(torch.from_numpy(index).to(tensor.device) for index in _sampled(tensor.shape))
    return _of_entries(tensor[at], dtype, tensor.shape)


def _of_entries(entries: Tensor, dtype: torch.dtype, shape: Sequence[int]) -> int:
    kind = f"{dtype} {list(shape)}".encode()
    return zlib.crc32(_digest(flat_bytes(entries.to(dtype))), zlib.crc32(kind))


def _sampled(shape: Sequence[int]) -> tuple[npt.NDArray[np.int64], ...]:
    """Indices of the entries that stand for a large tensor, one array per dimension."""
    num_entries = math.prod(shape)
    length = num_entries // _PLACES
    place = np.arange(_PLACES)
    begin = place * length + below(mix(as_u64(place + 1)), length - _RUN + 1)  # not in step with rows or types
    begin[0], begin[-1] = 0, num_entries - _RUN
    return np.unravel_index((begin[:, None] + np.arange(_RUN)).ravel(), tuple(shape))


def _digest(data: Tensor) -> bytes:
    """Few bytes as they are; of many, the products of blocks, and the last ones."""
    if data.data_ptr() % 8:
        data = data.clone()
    num_blocks = data.numel() // (8 * _BLOCK)
    words, rest = data[: num_blocks * 8 * _BLOCK], data[num_blocks * 8 * _BLOCK :]
    found = rest.cpu().numpy().tobytes()
    if num_blocks:
        found += _products(words.view(torch.int64).view(-1, _BLOCK)).cpu().numpy().tobytes()
    return found


def _products(blocks: Tensor) -> Tensor:
    """``[num_blocks]`` products with odd numbers, modulo 2^64: one word that changes always changes its product."""
    factors = torch.from_numpy((mix(as_u64(np.arange(1, _BLOCK + 1))) | np.uint64(1)).view(np.int64)).to(blocks.device)
    if blocks.device.type == "cpu":
        return blocks @ factors
    rows = _CHUNK // _BLOCK  # no GPU multiplies matrices of integers
    return torch.cat([(part * factors).sum(1) for part in torch.split(blocks, rows)])
