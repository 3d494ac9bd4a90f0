"""Checksums of tensors that cost about a millisecond, the same in every process and on every device."""

from __future__ import annotations

import zlib
from collections.abc import MutableMapping

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from manyhop.sampling._random import as_u64, below, mix

WHOLE = 16 << 20  # bytes: about 1.5 ms
_PLACES, _RUN = 1024, 4  # entries beside each other come from one page
_BLOCK = 1024  # words per row of the product: two thirds of the speed of a plain sum
_CHUNK = 4 << 20  # words that a GPU multiplies at a time

_known: MutableMapping[Tensor, tuple[int, int]] = WeakIdKeyDictionary()


def checksum(tensor: Tensor, *, whole: int = WHOLE) -> int:
    """Return a 32-bit checksum of dtype, shape and entries.

    Every entry counts where the tensor has at most ``whole`` bytes. From larger ones, 4096 entries are read, at
    positions that depend on the number of entries alone: the first four, the last four, and runs of four spread evenly
    between, so that memory-mapped files are read at 1024 places.

    Args:
        tensor: dense, of any shape and dtype, on any device.
        whole: bytes, 64 KiB or more.
    """
    return _checksum(tensor, tensor.detach().dtype, whole // max(1, tensor.element_size()))


def checksum_of_values(tensor: Tensor) -> int:
    """Return a 32-bit checksum of shape and values, whatever the dtype that stores them.

    As :func:`checksum`; integers count as int64 and other numbers as float64. Computed once per tensor and version.
    """
    version = -1 if tensor.is_inference() else tensor._version  # nobody counts the changes of such a tensor
    known = _known.get(tensor)
    if known is None or known[0] != version or version < 0:
        wide = torch.float64 if tensor.is_floating_point() else torch.int64
        known = _known[tensor] = version, _checksum(tensor, wide, WHOLE // wide.itemsize)
    return known[1]


def _checksum(tensor: Tensor, dtype: torch.dtype, most: int) -> int:
    """Of entries as a dtype: of all of them, if there are at most so many."""
    tensor = tensor.detach()
    entries = tensor if tensor.numel() <= most else tensor[_sampled(tensor)]
    kind = f"{dtype} {list(tensor.shape)}".encode()
    return zlib.crc32(_digest(entries.to(dtype).contiguous().view(-1)), zlib.crc32(kind))


def _sampled(tensor: Tensor) -> tuple[Tensor, ...]:
    """Indices of the entries that stand for a large tensor, one tensor per dimension."""
    length = tensor.numel() // _PLACES
    place = np.arange(_PLACES)
    begin = place * length + below(mix(as_u64(place + 1)), length - _RUN + 1)  # not in step with rows or types
    begin[0], begin[-1] = 0, tensor.numel() - _RUN
    indices = np.unravel_index((begin[:, None] + np.arange(_RUN)).ravel(), tuple(tensor.shape))
    return tuple(torch.from_numpy(index).to(tensor.device) for index in indices)


def _digest(flat: Tensor) -> bytes:
    """The bytes of a short vector; the products of blocks of a long one, and its last bytes."""
    data = flat.view(torch.uint8)
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
