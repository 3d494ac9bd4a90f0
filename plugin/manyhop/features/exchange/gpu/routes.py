"""Routes of the rows of one batch: sort the ids of each index by owner rank, on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from manyhop.features.exchange.gpu.flight import IDS, LENGTHS, NEEDS, Flight, Shares
from manyhop.features.exchange.requested import Pattern
from manyhop.features.exchange.row_exchange import Status, Tag
from manyhop.features.kernels.routes import TILE, mark, place
from manyhop.features.requests import RowRequest
from manyhop.features.sources import RowsInParts
from manyhop.system.triton_launch import Kernel

_ASKS, _FAILED = int(Status.ASKS), int(Status.FAILED)


@dataclass(eq=False, slots=True)
class Group:
    """Tensors that are read by the same ids.

    Its entries, a row and a position each, are sorted by bucket: first repeated ids of the index; then one bucket for
    each other rank, ascending; then that of this rank; last the ids whose rows are cached.
    """

    request: RowRequest
    """The first request of these tensors."""
    index: Tensor
    """``[count] int64 or int32``, on the GPU."""
    sources: list[RowsInParts]
    widths: list[int]
    """``[tables]``: bytes of a row."""
    outs: list[Tensor]
    """``[count, ...]`` each: results."""
    count: int
    """Number of ids."""
    id_bytes: int
    """Bytes of a row number: 4 or 8."""
    padded_count: int
    """``count``, rounded up for alignment."""
    begin: int
    """Offset of its part of the scratch memory, in int32."""
    scratch: Tensor = field(init=False)
    """``[...] int32``: scratch memory of all groups."""
    rows_at: int = 0
    """Address of ``[count] int32 or int64``: row in that rank's part or, of repeated ids, in the result."""
    positions_at: int = 0
    """Address of ``[count] int32``: positions in the result."""
    marks_at: int = 0
    """Address of the output of the first kernel for the next one."""
    deduplicate: bool = False
    """Whether repeated ids are removed."""
    ends: list[int] = field(default_factory=list)
    """``[num_ranks + 2]``: end of each bucket; known after the report of the headers."""

    def set_memory(self, scratch: Tensor, address: int) -> None:
        """Set the scratch memory and its address."""
        self.scratch = scratch
        self.rows_at = address + 4 * self.begin
        self.positions_at = self.rows_at + self.id_bytes * self.padded_count
        self.marks_at = self.positions_at + 4 * self.padded_count

    @property
    def table_bits(self) -> int:
        """Return log2 of the size of the hash table, of which at most half is filled, for short probe sequences."""
        return max(10, self.count.bit_length() + 1)

    @property
    def repeated(self) -> slice:
        """Return the entries of repeated ids."""
        return slice(0, self.ends[0])

    @property
    def own(self) -> slice:
        """Return the entries whose rows this rank owns."""
        return slice(self.ends[-3], self.ends[-2])

    @property
    def cached(self) -> slice:
        """Return the entries whose rows are cached."""
        return slice(self.ends[-2], self.ends[-1])

    def counts(self, rank: int) -> list[int]:
        """Return ``[num_ranks]``, the rows requested from each rank; 0 for this one, ``rank``."""
        counts = [end - begin for begin, end in pairwise(self.ends[:-2])]
        return [*counts[:rank], 0, *counts[rank:]]

    def begin_of(self, other: int, rank: int) -> int:
        """Return the first entry whose row rank ``other`` owns; this one is ``rank``."""
        return self.ends[other - (other > rank)]

    def remote_rows(self) -> Tensor:
        """Return the sorted rows of other ranks, ``[...] int32 or int64``."""
        rows = self.scratch[self.begin : self.begin + self.count * self.id_bytes // 4]
        return (rows.view(torch.int64) if self.id_bytes == 8 else rows)[self.ends[0] : self.ends[-3]]


def make_groups(
    requests: Sequence[RowRequest], pattern: Pattern, flight: Flight, device: torch.device
) -> tuple[list[Group], list[Any]]:
    """Group requests by index, and allocate their results."""
    outs: list[Any] = [None] * len(requests)
    id_bytes, words, groups = (8 if pattern.wide else 4), 0, []
    for shared in pattern.groups:
        request = requests[shared.members[0]]
        index = request.index
        if index.device != device or not index.is_contiguous():
            index = index.to(device).contiguous()
        count = index.numel()
        results = [
            torch.empty((count, *shape), dtype=dtype, device=device)
            for shape, dtype in zip(shared.shapes, shared.dtypes, strict=True)
        ]
        for member, out in zip(shared.members, results, strict=True):
            outs[member] = out
        padded = _padded(count)
        begins = _padded((pattern.ranks + 2) * _blocks(count))
        groups.append(Group(request, index, shared.sources, shared.widths, results, count, id_bytes, padded, words))
        words += (id_bytes // 4 + 3) * padded + begins
    scratch = flight.memory("scratch", words, torch.int32)
    at = scratch.data_ptr()
    for group in groups:
        group.set_memory(scratch, at)
    return groups, outs


def _padded(count: int) -> int:
    """Round up a number of int32 to an alignment of 16 bytes."""
    return -(-count // 4) * 4


def _blocks(count: int) -> int:
    return max(1, -(-count // int(TILE.value)))


def enqueue_routes(
    groups: Sequence[Group], rank: int, flight: Flight, shares: Shares, tag: Tag, signature: int
) -> None:
    """Sort the ids of all groups, and write the headers for the other ranks, on the current stream."""
    tables = sum(1 << group.table_bits for group in groups if group.deduplicate)
    device, ranks, sent = groups[0].index.device, flight.ranks, flight.sent_at
    zeros = torch.zeros(tables, dtype=torch.int64, device=device) if tables else None
    table = 0 if zeros is None else zeros.data_ptr()
    for g, group in enumerate(groups):
        count, source, padded_count = group.count, group.request.source, 4 * group.padded_count
        blocks, num_rows, hot = _blocks(count), source.num_rows, source.hot
        totals = flight.state_at + 8 * (ranks + 3) * g
        index, wide = group.index.data_ptr() or totals, int(group.index.dtype == torch.int64)
        bad = totals + 8 * (ranks + 2)
        first, buckets, begins = group.marks_at, group.marks_at + padded_count, group.marks_at + 2 * padded_count
        # Arguments by position, here and in transfers: by name, they cost the host 2 us per launch.
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
    """Return the kernel that finds the bucket of each id."""
    return Kernel(mark, (deduplicate, hot))


@cache
def placer(wide_rows: bool) -> Kernel:
    """Return the kernel that sorts the ids by bucket."""
    return Kernel(place, (wide_rows,))


_BYTES_PER_ID = 12  # sent in the time of a lookup: 40 ps on an H200, at 300 GB/s
_BYTES = 12 << 20  # sent in the host's time for two more kernels: 40 us
_AGAIN = 32  # exchanges until the next attempt
_MOST_KNOWN = 256


class Repeats:
    """The history of repeated ids, by kind of index."""

    def __init__(self) -> None:
        self._since: dict[tuple[int, int, int], int] = {}  # exchanges since an attempt that saved no time

    def decide(self, signature: int, groups: Sequence[Group]) -> None:
        """Set ``deduplicate`` of each group."""
        for g, group in enumerate(groups):
            kind = signature, g, group.count.bit_length()  # many ids repeat more often than few
            since = self._since.get(kind, -1) + 1
            if since:
                self._since[kind] = since
            group.deduplicate = since % _AGAIN == 0 and _can_repeat(group)

    def learn(self, signature: int, groups: Sequence[Group]) -> None:
        """Learn from the numbers of repeated ids, once the host has them."""
        for g, group in enumerate(groups):
            if group.deduplicate:
                kind = signature, g, group.count.bit_length()
                if group.ends[0] * sum(group.widths) > _BYTES + _BYTES_PER_ID * group.count:
                    self._since.pop(kind, None)
                elif len(self._since) < _MOST_KNOWN:
                    self._since[kind] = 0


def _can_repeat(group: Group) -> bool:
    """Return whether repeats would be sent, and an id with its position fits into 63 bits."""
    source = group.request.source
    bits: int = group.count.bit_length() + source.num_rows.bit_length()
    return bits <= 63 and not source.world.is_alone
