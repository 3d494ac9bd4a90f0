"""Rows on their way from ranks that have them to those that are to hold them, a chunk at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from manyhop.system.arrays import flat_bytes

AllToAll: TypeAlias = Callable[[Tensor, Tensor, list[int], list[int]], object]
"""``all_to_all(received, sent, from_ranks, to_ranks)``: bytes, and numbers of bytes by rank."""

_CHUNK_BYTES = 32 << 20  # from one rank to another


def overlap(a: range, b: range) -> range:
    """Return what two ranges have in common."""
    begin = max(a.start, b.start)
    return range(begin, max(begin, min(a.stop, b.stop)))


def send_in_chunks(
    flows: Mapping[tuple[int, int], range],
    part: Tensor,
    begin: int,
    rank: int,
    num_ranks: int,
    row_bytes: int,
    all_to_all: AllToAll,
) -> Iterator[tuple[range, Tensor]]:
    """Send rows to other ranks, and yield those that come. All ranks go through all of it.

    Args:
        flows: (sender, receiver) -> the rows that go this way, by their numbers in the whole tensor.
        part: ``[count, ...]``: the rows of this rank.
        begin: number of the first of them.
        rank: this one.
        num_ranks: of all.
        row_bytes: bytes of a row, at least 1.
        all_to_all: sends bytes between hosts.

    Yields:
        Numbers of some rows, and their bytes ``[len(rows) * row_bytes] uint8``.
    """
    chunk = max(1, _CHUNK_BYTES // row_bytes)
    for k in range(-(-max(map(len, flows.values()), default=0) // chunk)):
        pieces = {ends: flow[k * chunk : (k + 1) * chunk] for ends, flow in flows.items()}
        out = [pieces.get((rank, other), range(0)) for other in range(num_ranks)]
        into = [pieces.get((other, rank), range(0)) for other in range(num_ranks)]
        sent = torch.cat([part[:0], *(part[p.start - begin : p.stop - begin] for p in out if p)]).cpu()
        sizes = [len(p) * row_bytes for p in into]
        received = torch.empty(sum(sizes), dtype=torch.uint8)
        all_to_all(received, flat_bytes(sent), sizes, [len(p) * row_bytes for p in out])
        for rows, data in zip(into, torch.split(received, sizes), strict=True):
            if rows:
                yield rows, data
