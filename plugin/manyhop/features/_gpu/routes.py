"""Where the rows of one batch are: the ids of each index sorted, on the GPU, by the rank that has their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from manyhop.features._distributed import DistributedRows
from manyhop.features._gather import RowRequest
from manyhop.features._gpu._launch import Kernel
from manyhop.features._gpu.flight import IDS, LENGTHS, NEEDS, Flight
from manyhop.features._gpu.kernels.routes import TILE, mark, place
from manyhop.features._gpu.terms import Shares
from manyhop.features._headers import Status, Tag


@dataclass(eq=False)
class Group:
    """Tensors that are read by the same ids.

    ``rows`` and ``positions`` are sorted by buckets: the first has the ids that have come before in this index; then
    there is one for each other rank, ascending; then that of this rank; the last has the ids whose rows the cache has.
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
    rows: Tensor
    """``[count] int32 or int64``: row in that rank's part or, of repeated ids, in the result."""
    rows_at: int
    """Their address, also where there are none."""
    positions_at: int
    """Address of ``[count] int32``: positions in the result."""
    scratch_at: int
    """Address of what kernels leave for those after them."""
    deduplicate: bool
    """Whether ids that come again are looked for."""
    ends: list[int]
    """``[num_ranks + 2]``: where each bucket ends; known once the host has seen the batch's state."""

    @property
    def table_bits(self) -> int:
        """Of the size of the hash table: half of it stays empty, for fewer steps."""
        return max(10, self.index.numel().bit_length() + 1)

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

    def see(self, state: Sequence[int]) -> None:
        """``[num_ranks + 2]``: how many entries each bucket has."""
        self.ends = list(accumulate(state))


def make_groups(requests: Sequence[RowRequest], device: torch.device) -> tuple[list[Group], list[Tensor]]:
    """The requests by index, and their results, which are still to be written."""
    groups: dict[tuple[int, int, int], Group] = {}
    outs = []
    wide = any(len(request.source.shards.rows_of(0)) + 1 >= 2**31 for request in requests)
    for request in requests:
        source: DistributedRows = request.source
        key = (id(request.index), source.num_rows, id(source.hot))
        group = groups.get(key)
        if group is None:
            group = groups[key] = _make_group(request, request.index.to(device).contiguous(), wide)
        group.sources.append(source)
        group.widths.append(source.row_bytes)
        group.outs.append(torch.empty((group.index.numel(), *source.shape[1:]), dtype=source.dtype, device=device))
        outs.append(group.outs[-1])
    return list(groups.values()), outs


def _make_group(request: RowRequest, index: Tensor, wide: bool) -> Group:
    count = index.numel()
    ranks = request.source.world.world_size
    room = -(-count // 4) * 4 + 4  # memory of no bytes has no address
    memory = torch.empty(
        (5 if wide else 4) * room + (ranks + 2) * _blocks(count), dtype=torch.int32, device=index.device
    )
    rows = memory[: 2 * room].view(torch.int64)[:count] if wide else memory[:count]
    rows_at = memory.data_ptr()
    positions_at = rows_at + (8 if wide else 4) * room
    return Group(request, index, [], [], [], rows, rows_at, positions_at, positions_at + 4 * room, False, [])


def _blocks(count: int) -> int:
    return max(1, -(-count // int(TILE.value)))


def enqueue_routes(
    groups: Sequence[Group], rank: int, flight: Flight, shares: Shares, tag: Tag, signature: int
) -> None:
    """Sort the ids of all groups, and write what the other ranks are told, on the current stream.

    Args:
        groups: whose ``rows`` and ``positions`` are written.
        rank: this one.
        flight: prepared: what to tell the other ranks, and what the host has to know.
        shares: where in it the ids go.
        tag: of the exchange.
        signature: of what is asked for.
    """
    table = flight.table.data_ptr()
    state, sent, num_ranks = flight.state.data_ptr(), flight.sent.data_ptr(), flight.sent.shape[0]
    for g, group in enumerate(groups):
        device, count, blocks = group.index.device, group.index.numel(), _blocks(group.index.numel())
        source = group.request.source
        index, wide = group.index.data_ptr() or state, int(group.index.dtype == torch.int64)
        first = group.scratch_at
        room = -(-count // 4) * 16 + 16
        buckets, begins = first + room, first + 2 * room
        totals = state + 8 * (num_ranks + 3) * g
        bad = totals + 8 * (num_ranks + 2)
        hot = source.hot
        marker(group.deduplicate, hot is not None)(
            device, blocks, index, wide, count, source.num_rows, num_ranks, rank, table, group.table_bits,
            count.bit_length(), 0 if hot is None else hot.groups.data_ptr(), first, buckets, totals, begins, blocks,
            bad,
        )  # fmt: skip
        placer(group.rows.dtype == torch.int64)(
            device, blocks, index, wide, count, source.num_rows, num_ranks, rank, first, buckets, totals, begins,
            blocks, group.rows_at, group.positions_at, sent, flight.words,
            0 if g else int(Status.ASKS), int(Status.FAILED), *tag, signature, 0, sent + 8 * (LENGTHS + g),
            sent + 8 * (NEEDS + g), sent + 8 * (IDS + shares.id_begins[g]), shares.id_caps[g], bad,
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
