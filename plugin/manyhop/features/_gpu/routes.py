"""Where the rows of one batch are: the ids of each index sorted, on the GPU, by the rank that has their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor

from manyhop.features._distributed import DistributedRows
from manyhop.features._gather import RowRequest
from manyhop.features._gpu._launch import Kernel
from manyhop.features._gpu.flight import MOST_GROUPS, NEEDED, Flight
from manyhop.features._gpu.kernels.routes import EMPTY, TILE, mark, place, unpack
from manyhop.features._headers import HEADER_WORDS, Status


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
    """``[count] int32 or int64``, at least 1: row in that rank's part or, of repeated ids, in the result."""
    positions: Tensor
    """``[count] int32``, at least 1: positions in the result."""
    ends: list[int]
    """``[num_ranks + 2]``: where each bucket ends; known once the host has seen the batch's state."""

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


def make_groups(requests: Sequence[RowRequest], device: torch.device) -> tuple[list[Group], list[Tensor]]:
    """The requests by index, and their results, which are still to be written."""
    groups: dict[tuple[int, int, int], Group] = {}
    outs = []
    wide = any(len(request.source.shards.rows_of(0)) + 1 >= 2**31 for request in requests)
    for request in requests:
        source: DistributedRows = request.source
        key = (id(request.index), source.num_rows, id(source.hot))
        if key not in groups:
            index = request.index.to(device).contiguous()
            room = max(1, index.numel())  # memory of no bytes has no address
            rows = torch.empty(room, dtype=torch.int64 if wide else torch.int32, device=device)
            positions = torch.empty(room, dtype=torch.int32, device=device)
            groups[key] = Group(request, index, [], [], [], rows, positions, [])
        group = groups[key]
        group.sources.append(source)
        group.widths.append(source.row_bytes)
        group.outs.append(torch.empty((group.index.numel(), *source.shape[1:]), dtype=source.dtype, device=device))
        outs.append(group.outs[-1])
    return list(groups.values()), outs


def enqueue_route(group: Group, number: int, groups: int, rank: int, flight: Flight) -> None:
    """Sort the ids of a group, on the current stream.

    Args:
        group: whose ``rows`` and ``positions`` are written.
        number: of the group in the batch.
        groups: how many there are.
        rank: this one.
        flight: what to tell the other ranks: how many rows are wanted of each, which, as far as there is room, and
            whether an id is wrong; and what the host has to know.
    """
    device, count, num_ranks = group.index.device, group.index.numel(), flight.sent.shape[0]
    num_rows, wide = group.request.source.num_rows, int(group.index.dtype == torch.int64)
    blocks = max(1, -(-count // TILE.value))
    position_bits = count.bit_length()
    table_bits = max(10, position_bits + 1)  # half of it stays empty: fewer steps
    deduplicate = num_ranks > 1 and position_bits + num_rows.bit_length() <= 63
    table = torch.full((1 << table_bits if deduplicate else 1,), EMPTY.value, dtype=torch.int64, device=device)
    first, buckets = torch.empty(2, max(1, count), dtype=torch.int32, device=device)
    counts = torch.empty((num_ranks + 2) * blocks, dtype=torch.int32, device=device)
    index = group.index.data_ptr() or table.data_ptr()
    hot, bad = group.request.source.hot, flight.bad.data_ptr() + 8 * number
    marker(deduplicate, hot is not None)(
        device, blocks, index, wide, count, num_rows, num_ranks, rank, table.data_ptr(), table_bits, position_bits,
        0 if hot is None else hot.groups.data_ptr(), first.data_ptr(), buckets.data_ptr(), counts.data_ptr(), blocks,
        bad,
    )  # fmt: skip
    sums = torch.cumsum(counts, 0, dtype=torch.int32)
    header, words = flight.sent.data_ptr(), flight.sent.shape[1]
    ids, room = _region(flight, number, groups, group.rows.element_size())
    placer(group.rows.dtype == torch.int64)(
        device, blocks, index, wide, count, num_rows, num_ranks, rank, first.data_ptr(), buckets.data_ptr(),
        counts.data_ptr(), sums.data_ptr(), blocks, group.rows.data_ptr(), group.positions.data_ptr(),
        flight.ends[number].data_ptr(), header, header + 8 * (HEADER_WORDS + number), words, bad, int(Status.FAILED),
        header + ids, room, header + 8 * NEEDED, groups,
    )  # fmt: skip


def enqueue_unpack(group: Group, number: int, groups: int, rank: int, flight: Flight) -> Tensor | None:
    """Put the ids that have come with the headers behind each other, on the current stream.

    Args:
        group, number, groups, rank, flight: as above; the flight has arrived.

    Returns:
        ``[as many as fit] int32 or int64``: the rows that ranks want of this one, by rank, if all have fitted;
        ``None``: there is no room for any.
    """
    ids, room = _region(flight, number, groups, group.rows.element_size())
    num_ranks, words = flight.received.shape
    if room == 0 or num_ranks == 1:
        return None
    asked = group.rows.new_empty((num_ranks - 1) * room)
    header, blocks = flight.received.data_ptr(), -(-room // TILE.value)
    unpacker(asked.dtype == torch.int64)(
        asked.device, num_ranks * blocks, header + 8 * (HEADER_WORDS + number), header + ids, words, room, rank, blocks,
        asked.data_ptr(),
    )  # fmt: skip
    return asked


def _region(flight: Flight, number: int, groups: int, id_bytes: int) -> tuple[int, int]:
    """Where the ids of a group are, in bytes from the beginning of a header, and how many there is room for."""
    words = flight.room // groups
    return 8 * (HEADER_WORDS + MOST_GROUPS + number * words), 8 * words // id_bytes


@cache
def marker(deduplicate: bool, hot: bool) -> Kernel:
    """The kernel that finds the bucket of each id."""
    return Kernel(mark, (0,) * 15, (deduplicate, hot), num_warps=4)


@cache
def placer(wide_rows: bool) -> Kernel:
    """The kernel that sorts the ids by bucket."""
    return Kernel(place, (0,) * 23, (wide_rows,), num_warps=4)


@cache
def unpacker(wide_rows: bool) -> Kernel:
    """The kernel that collects what ranks ask for."""
    return Kernel(unpack, (0,) * 7, (wide_rows,), num_warps=4)
