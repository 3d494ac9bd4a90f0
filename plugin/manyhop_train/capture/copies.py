"""Copies at both ends of a graph: of batches to where it reads them, of results to memory of the caller's."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from manyhop.system.triton_launch import Kernel
from manyhop_train.capture.arguments import Arguments
from manyhop_train.capture.kernels import FIELDS, TILE, copy_tensors

_COUNTS: Final = (8, 16, 32)
"""Tensors of a launch; a kernel each."""
_NEVER: Final = 1 << 62
"""The first program of a tensor that is not there."""


def enqueue_copies(tensors: Sequence[Tensor], first: int, arguments: Arguments, *, out: bool) -> None:
    """Copy tensors from, or to, the addresses that a replay is given, on the current stream.

    Args:
        tensors: contiguous and not empty; a graph that this is recorded in keeps using their memory.
        first: number of the argument of the first one; those of the others follow.
        arguments: which :meth:`Arguments.fetch` has read.
        out: copies to these addresses, not from them.
    """
    most = _COUNTS[-1]
    for begin in range(0, len(tensors), most):
        some, calls, programs = tensors[begin : begin + most], list[int](), 0
        for number, tensor in enumerate(some, first + begin):
            calls += (number, tensor.data_ptr(), tensor.nbytes, programs)
            programs += -(-tensor.nbytes // TILE.value)
        size = _size(len(some))
        calls += (0, 0, 0, _NEVER) * (size - len(some))
        _kernel(size, out)(some[0].device, programs, tuple(calls), arguments.address)


def prepare(num_in: int, num_out: int, device: torch.device) -> None:
    """Compile the kernels for so many tensors, or load them, which cannot be done while a graph is recorded."""
    for num, out in ((num_in, False), (num_out, True)):
        for count in {num % _COUNTS[-1], min(num, _COUNTS[-1])} - {0}:
            _kernel(_size(count), out).prepare(device)


def _size(count: int) -> int:
    return next(n for n in _COUNTS if n >= count)


@functools.cache
def _kernel(size: int, out: bool) -> Kernel:
    return Kernel(copy_tensors, (size * FIELDS.value, 0), (size, out), num_warps=4)
