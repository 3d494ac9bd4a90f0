"""Routes of the rows of one batch: by node, cache or result, and in parts, several of which are in flight."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.features.buffers import BufferPool
from manyhop.features.exchange.headers import shared_ids
from manyhop.features.requests import RowRequest, out_of_range
from manyhop.features.sources import ShardedRows

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

    from manyhop.features.cpu_kernels import move_rows

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

    from manyhop.features.cpu_kernels import move_rows

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


@dataclass
class Table:
    """A tensor and where its rows of this batch go to."""

    source: ShardedRows
    out: Tensor


@dataclass(frozen=True)
class Routes:
    """The ids of one index, and the tensors that are to be read by it."""

    tables: list[Table]
    offsets: list[int]
    """``[num_nodes + 3]``: where the entries of each node, of the cache and of repeated ids begin; then the end."""
    rows: Tensor
    """``[count] int64``: row in that node's part, in the cache, or, of repeated ids, in the result."""
    positions: Tensor
    """``[count] int64``: positions in the result."""

    @property
    def width(self) -> int:
        """Bytes that all tensors together have per id."""
        return sum(table.source.row_bytes for table in self.tables)

    def count(self, place: int) -> int:
        """How many entries a place has."""
        return self.offsets[place + 1] - self.offsets[place]

    def rows_at(self, place: int) -> Tensor:
        """The rows that are wanted of a place."""
        return self.rows[self.offsets[place] : self.offsets[place + 1]]

    def pieces_from(self, node: int) -> list[Piece]:
        """What another node will give: where it belongs."""
        positions = self.positions[self.offsets[node] : self.offsets[node + 1]]
        return [Piece(table.out, positions, table.source.row_bytes) for table in self.tables]

    def pieces_of(self, rows: Tensor) -> list[Piece]:
        """What to give to a rank that wants these rows (``[count] int64``) of this node's part."""
        return [Piece(table.source.rows, rows, table.source.row_bytes) for table in self.tables]

    def copy_local(self, node: int, num_nodes: int) -> None:
        """Copy what is on this node, its cache included."""
        for table in self.tables:
            self._copy(node, table.source.rows, table)
            if table.source.hot_rows is not None:
                self._copy(num_nodes, table.source.hot_rows, table)

    def copy_repeated(self, num_nodes: int) -> None:
        """Copy rows of ids that have come before from where they are in the result. The last step."""
        for table in self.tables:
            self._copy(num_nodes + 1, table.out, table)

    def _copy(self, place: int, source: Tensor, table: Table) -> None:
        from manyhop.features.cpu_kernels import move_rows

        begin, count = self.offsets[place], self.count(place)
        rows, positions = self.rows.data_ptr() + 8 * begin, self.positions.data_ptr() + 8 * begin
        move_rows(source.data_ptr(), rows, table.out.data_ptr(), positions, count, table.source.row_bytes)


def find_routes(requests: Sequence[RowRequest], pool: BufferPool) -> tuple[list[Routes], list[Tensor]]:
    """Sort the ids of all requests, those of each index once; also gives where the results will be.

    Raises:
        FeatureError: an id is out of range.
    """
    tables: dict[tuple[int, int, int], list[Table]] = {}
    first: dict[tuple[int, int, int], RowRequest] = {}
    outs = []
    for request in requests:
        source: ShardedRows = request.source
        key = shared_ids(request)
        first.setdefault(key, request)
        outs.append(pool.empty((request.index.numel(), *source.shape[1:]), source.dtype))
        tables.setdefault(key, []).append(Table(source, outs[-1]))
    return [_route(first[key], tables[key], pool) for key in tables], outs


def _route(request: RowRequest, tables: list[Table], pool: BufferPool) -> Routes:
    from manyhop.features.cpu_lookup import route

    source: ShardedRows = request.source
    index, shards, node, hot = request.index.contiguous(), source.shards, source.world.node, source.hot
    count = index.numel()
    position_bits = count.bit_length()
    if position_bits + shards.num_rows.bit_length() > 63:
        raise FeatureError(f"Expected fewer ids at a time of {shards.num_rows} rows, got {count}. Use smaller batches.")
    table_bits = max(6, position_bits + 1, shards.num_nodes.bit_length() + 1)  # half of it stays empty: fewer steps
    bounds = torch.tensor(shards.bounds)
    offsets = torch.empty(shards.num_nodes + 3, dtype=torch.int64)
    table = pool.empty((1 << table_bits,), torch.int64)
    scratch = pool.empty((2 * count,), torch.int64)
    rows, positions = pool.empty((count,), torch.int64), pool.empty((count,), torch.int64)
    bad = route(
        index.data_ptr(),
        index.dtype == torch.int64,
        count,
        bounds.data_ptr(),
        shards.num_nodes,
        node,
        0 if hot is None else hot.groups.data_ptr(),
        table.data_ptr(),
        table_bits,
        position_bits,
        scratch.data_ptr(),
        offsets.data_ptr(),
        rows.data_ptr(),
        positions.data_ptr(),
    )
    if bad >= 0:
        raise out_of_range(request, bad, shards.num_rows)
    return Routes(tables, offsets.tolist(), rows, positions)
