"""Rows on their way between ranks: in parts, several of which are under way at a time."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyhop.features.buffers import BufferPool

# What one rank sends another at a time. Measured: with cores for all threads, as much as the cache of a core holds;
# otherwise every part costs changes of the thread.
_PART_BYTES, _PART_BYTES_FEW_CORES = 1 << 20, 4 << 20
_THREADS = 3  # of a rank in an exchange: one gives, one takes, one of gloo reads and writes
_IN_FLIGHT = 3  # parts: while one is put together, others are sent


@dataclass(frozen=True)
class Piece:
    """Rows of one tensor that one rank gives to another; each of the two has its own."""

    tensor: Tensor
    """``[rows, ...]``: the tensor, or the result."""
    rows: Tensor
    """``[count] int64``: which rows of it."""
    row_bytes: int

    def nbytes(self, k: int, parts: int) -> int:
        """Bytes of part ``k``."""
        begin, end = part(self.rows.numel(), k, parts)
        return (end - begin) * self.row_bytes


Pieces = dict[int, list[Piece]]
"""What goes to, or comes from, each rank."""


def part(count: int, k: int, parts: int) -> tuple[int, int]:
    """Where part ``k`` of so many rows begins and ends."""
    return count * k // parts, count * (k + 1) // parts


def number_of_parts(nbytes: int, ranks: int) -> int:
    """In how many parts to send rows of which a rank gets at most so many bytes from another.

    Args:
        nbytes: how many.
        ranks: of this node, which share its cores.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(nbytes / (_PART_BYTES if cores >= _THREADS * ranks else _PART_BYTES_FEW_CORES)))


def give(group: Any, pieces: Pieces, parts: int, pool: BufferPool) -> None:
    """Send rows to the ranks that have asked for them, which :func:`take` them in as many parts.

    Args:
        group: a process group (gloo) of all ranks.
        pieces: what to send.
        parts: how many there are.
        pool: memory of what is on its way.

    Raises:
        RuntimeError: from gloo: a rank is gone or late.
    """
    import torch.distributed as dist

    from manyhop.features.exchange.cpu_kernels import move_rows

    flights: deque[list[Any]] = deque()
    room = _room(pieces, parts)
    sent = pool.empty((min(parts, _IN_FLIGHT) * room,), torch.uint8)
    for k in range(parts):
        if len(flights) == _IN_FLIGHT:
            _wait(flights.popleft())
        works = []
        end = k % _IN_FLIGHT * room
        for rank, pieces_of_rank in pieces.items():
            begin = end
            for piece in pieces_of_rank:
                first, last = part(piece.rows.numel(), k, parts)
                rows, at = piece.rows.data_ptr() + 8 * first, sent.data_ptr() + end
                move_rows(piece.tensor.data_ptr(), rows, at, 0, last - first, piece.row_bytes)
                end += (last - first) * piece.row_bytes
            if end > begin:
                works.append(dist.isend(sent[begin:end], rank, group=group, tag=k))
        flights.append(works)
    while flights:
        _wait(flights.popleft())


def take(group: Any, pieces: Pieces, parts: int, pool: BufferPool, meanwhile: Callable[[], None]) -> None:
    """Receive rows and put them where they belong.

    Args:
        group: a process group (gloo) of all ranks.
        pieces: what is going to come.
        parts: how many there are.
        pool: memory of what is on its way.
        meanwhile: other work, done once something is on its way.

    Raises:
        RuntimeError: from gloo: a rank is gone or late.
    """
    import torch.distributed as dist

    from manyhop.features.exchange.cpu_kernels import move_rows

    flights: deque[list[Any]] = deque()
    room = _room(pieces, parts)
    received = pool.empty((min(parts, _IN_FLIGHT) * room,), torch.uint8)

    def expect(k: int) -> None:
        works = []
        end = k % _IN_FLIGHT * room
        for rank, pieces_of_rank in pieces.items():
            begin, end = end, end + sum(piece.nbytes(k, parts) for piece in pieces_of_rank)
            if end > begin:
                works.append(dist.irecv(received[begin:end], rank, group=group, tag=k))
        flights.append(works)

    for k in range(min(parts, _IN_FLIGHT)):
        expect(k)
    meanwhile()
    for k in range(parts):
        _wait(flights.popleft())
        at = received.data_ptr() + k % _IN_FLIGHT * room
        for pieces_of_rank in pieces.values():
            for piece in pieces_of_rank:
                first, last = part(piece.rows.numel(), k, parts)
                rows = piece.rows.data_ptr() + 8 * first
                move_rows(at, 0, piece.tensor.data_ptr(), rows, last - first, piece.row_bytes)
                at += (last - first) * piece.row_bytes
        if k + _IN_FLIGHT < parts:
            expect(k + _IN_FLIGHT)


def _wait(works: list[Any]) -> None:
    while works:
        works.pop().wait()


def _room(pieces: Pieces, parts: int) -> int:
    """Bytes of the largest part, of all ranks together, at most."""
    return sum(-(-p.rows.numel() // parts) * p.row_bytes for of_rank in pieces.values() for p in of_rank)
