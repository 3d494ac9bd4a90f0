"""Where the rows of one batch are: the ids of each index sorted, on the GPU, by the rank that has their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from manyhop.features.exchange.gpu.flight import IDS, LENGTHS, NEEDS, Flight
from manyhop.features.exchange.gpu.kept import Kept
from manyhop.features.exchange.gpu.pattern import Pattern
from manyhop.features.exchange.gpu.terms import Shares
from manyhop.features.exchange.headers import Status, Tag
from manyhop.features.kernels.routes import TILE, mark, place
from manyhop.features.requests import RowRequest
from manyhop.features.sources.distributed import DistributedRows
from manyhop.system.triton_launch import Kernel

_ASKS, _FAILED = int(Status.ASKS), int(Status.FAILED)


@dataclass(eq=False, slots=True)
class Group:
    """Tensors that are read by the same ids.

    Its entries, a row and a position each, are sorted by buckets: the first has the ids that have come before in this
    index; then there is one for each other rank, ascending; then that of this rank; the last has the ids whose rows the
    cache has.
    """

    request: RowRequest
    """The first of them."""
    index: Tensor
    """``[count] int64 or int32``, on the GPU."""
    sources: list[DistributedRows]
    widths: list[int]
    """Bytes of a row of each of them."""
    outs: list[Tensor]
    """``[count, ...]`` each: the results."""
    count: int
    """Ids of the index."""
    id_bytes: int
    """Of a row number: 4 or 8."""
    room: int
    """int32 for a number of each id."""
    begin: int
    """Where its part of the scratch begins, in int32."""
    scratch: Tensor = field(init=False)
    """``[...] int32``: memory for what follows, of all groups."""
    rows_at: int = 0
    """Address of ``[count] int32 or int64``: row in that rank's part or, of repeated ids, in the result."""
    positions_at: int = 0
    """Address of ``[count] int32``: positions in the result."""
    marks_at: int = 0
    """Address of what the first kernel leaves for the next one."""
    deduplicate: bool = False
    """Whether ids that come again are looked for."""
    ends: list[int] = field(default_factory=list)
    """``[num_ranks + 2]``: where each bucket ends; known once the host has seen the batch's state."""

    def lie(self, scratch: Tensor, address: int) -> None:
        """In which scratch it lies, and where that begins."""
        self.scratch = scratch
        self.rows_at = address + 4 * self.begin
        self.positions_at = self.rows_at + self.id_bytes * self.room
        self.marks_at = self.positions_at + 4 * self.room

    @property
    def table_bits(self) -> int:
        """Of the size of the hash table: half of it stays empty, for fewer steps."""
        return max(10, self.count.bit_length() + 1)

    @property
    def repeated(self) -> slice:
        """The entries of ids that have come before."""
        return slice(0, self.ends[0])

    @property
    def remote(self) -> slice:
        """The entries whose rows other ranks have."""
        return slice(self.ends[0], self.ends[-3])

    @property
    def own(self) -> slice:
        """The entries whose rows this rank has."""
        return slice(self.ends[-3], self.ends[-2])

    @property
    def cached(self) -> slice:
        """The entries whose rows the cache has."""
        return slice(self.ends[-2], self.ends[-1])

    def counts(self, rank: int) -> list[int]:
        """``[num_ranks]``: rows wanted of each rank; 0 of this one, ``rank``."""
        counts = [end - begin for begin, end in pairwise(self.ends[:-2])]
        return [*counts[:rank], 0, *counts[rank:]]

    def begin_of(self, other: int, rank: int) -> int:
        """The first entry whose row rank ``other`` has; this one is ``rank``."""
        return self.ends[other - (other > rank)]

    def remote_rows(self) -> Tensor:
        """``[...] int32 or int64``: rows of other ranks, as they are sorted."""
        rows = self.scratch[self.begin : self.begin + self.count * self.id_bytes // 4]
        return (rows.view(torch.int64) if self.id_bytes == 8 else rows)[self.remote]

    def see(self, state: Sequence[int]) -> None:
        """``[num_ranks + 2]``: how many entries each bucket has."""
        self.ends = list(accumulate(state))


def make_groups(
    requests: Sequence[RowRequest], pattern: Pattern, kept: Kept, device: torch.device
) -> tuple[list[Group], list[Any]]:
    """The requests by index, and their results, which are still to be written.

    Args:
        requests: for rows.
        pattern: which fits them.
        kept: int32 for what kernels leave for each other.
        device: where all is.
    """
    outs: list[Any] = [None] * len(requests)
    id_bytes, words, groups = (8 if pattern.wide else 4), 0, []
    for shared in pattern.groups:
        request = requests[shared.members[0]]
        index = request.index
        if index.device != device or not index.is_contiguous():
            index = index.to(device).contiguous()
        count = index.numel()
        here = [
            torch.empty((count, *shape), dtype=dtype, device=device)
            for shape, dtype in zip(shared.shapes, shared.dtypes, strict=True)
        ]
        for member, out in zip(shared.members, here, strict=True):
            outs[member] = out
        room = _room(count)
        begins = _room((pattern.ranks + 2) * _blocks(count))
        groups.append(Group(request, index, shared.sources, shared.widths, here, count, id_bytes, room, words))
        words += (id_bytes // 4 + 3) * room + begins
    scratch = kept.take(words)
    at = scratch.data_ptr()
    for group in groups:
        group.lie(scratch, at)
    return groups, outs


def _room(count: int) -> int:
    """So many int32 that what follows is aligned."""
    return -(-count // 4) * 4


def _blocks(count: int) -> int:
    return max(1, -(-count // int(TILE.value)))


def enqueue_routes(
    groups: Sequence[Group], rank: int, flight: Flight, shares: Shares, tag: Tag, signature: int
) -> None:
    """Sort the ids of all groups, and write what the other ranks are told, on the current stream.

    Args:
        groups: whose scratch is written.
        rank: this one.
        flight: prepared: what to tell the other ranks, and what the host has to know.
        shares: where in it the ids go.
        tag: of the exchange.
        signature: of what is asked for.
    """
    tables = sum(1 << group.table_bits for group in groups if group.deduplicate)
    device, ranks, sent = groups[0].index.device, flight.ranks, flight.sent_at
    zeros = torch.zeros(tables, dtype=torch.int64, device=device) if tables else None
    table = 0 if zeros is None else zeros.data_ptr()
    for g, group in enumerate(groups):
        count, source, room = group.count, group.request.source, 4 * group.room
        blocks, num_rows, hot = _blocks(count), source.num_rows, source.hot
        totals = flight.state_at + 8 * (ranks + 3) * g
        index, wide = group.index.data_ptr() or totals, int(group.index.dtype == torch.int64)
        bad = totals + 8 * (ranks + 2)
        first, buckets, begins = group.marks_at, group.marks_at + room, group.marks_at + 2 * room
        marker(group.deduplicate, hot is not None)(
            device, blocks, index, wide, count, num_rows, ranks, rank, table, group.table_bits, count.bit_length(),
            0 if hot is None else hot.groups.data_ptr(), first, buckets, totals, begins, blocks, bad,
        )  # fmt: skip
        placer(group.id_bytes == 8)(
            device, blocks, index, wide, count, num_rows, ranks, rank, first, buckets, totals, begins, blocks,
            group.rows_at, group.positions_at, sent, flight.words, 0 if g else _ASKS, _FAILED, *tag, signature, 0,
            sent + 8 * (LENGTHS + g), sent + 8 * (NEEDS + g), sent + 8 * (IDS + shares.id_begins[g]), shares.id_caps[g],
            bad,
        )  # fmt: skip
        if group.deduplicate:
            table += 8 << group.table_bits


@cache
def marker(deduplicate: bool, hot: bool) -> Kernel:
    """The kernel that finds the bucket of each id."""
    return Kernel(mark, (0,) * 16, (deduplicate, hot), num_warps=4)


@cache
def placer(wide_rows: bool) -> Kernel:
    """The kernel that sorts the ids by bucket."""
    return Kernel(place, (0,) * 26, (wide_rows,), num_warps=4)
