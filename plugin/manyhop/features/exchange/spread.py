"""Rows in transfer from ranks that have them to ranks that will hold them: in chunks, into memory of nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.features.exchange.host import Exchange
from manyhop.memory.sharing import share
from manyhop.ranks import control
from manyhop.system.arrays import flat_bytes

AllToAll: TypeAlias = Callable[[Tensor, Tensor, list[int], list[int]], object]
"""``all_to_all(received, sent, from_ranks, to_ranks)``: bytes, and numbers of bytes by rank."""
Flows: TypeAlias = Mapping[tuple[int, int], range]

_CHUNK_BYTES = 32 << 20  # from one rank to another


def overlap(a: range, b: range) -> range:
    """Return the intersection of two ranges."""
    begin = max(a.start, b.start)
    return range(begin, max(begin, min(a.stop, b.stop)))


def copy_overlap(source: Tensor, rows: range, target: Tensor, wanted: range) -> None:
    """Copy common rows; ``rows`` and ``wanted`` are their numbers in the whole tensor."""
    both = overlap(rows, wanted)
    there = target[both.start - wanted.start : both.stop - wanted.start]
    there.copy_(source[both.start - rows.start : both.stop - rows.start])


def send_rows(
    part: Tensor, have: range, target: Tensor, wanted: range, flows: Flows, rank: int, num_ranks: int, send: AllToAll
) -> None:
    """Copy rows of this rank to its target, and send rows between ranks, in chunks. All ranks call it.

    Args:
        part: ``[len(have), ...]``: rows of this rank, of at least one byte.
        have: their numbers in the whole tensor.
        target: ``[len(wanted), ...]``, written.
        wanted: numbers of its rows.
        flows: (sender, receiver) -> numbers of the rows that go this way.
        rank: this one.
        num_ranks: of all.
        send: sends bytes between hosts.
    """
    copy_overlap(part, have, target, wanted)
    row_bytes = math.prod(part.shape[1:]) * part.itemsize
    chunk = max(1, _CHUNK_BYTES // row_bytes)
    for k in range(-(-max(map(len, flows.values()), default=0) // chunk)):
        pieces = {ends: flow[k * chunk : (k + 1) * chunk] for ends, flow in flows.items()}
        out = [pieces.get((rank, other), range(0)) for other in range(num_ranks)]
        into = [pieces.get((other, rank), range(0)) for other in range(num_ranks)]
        sent = torch.cat([part[:0], *(part[p.start - have.start : p.stop - have.start] for p in out if p)]).cpu()
        sizes = [len(p) * row_bytes for p in into]
        received = torch.empty(sum(sizes), dtype=torch.uint8, device="cpu")
        send(received, flat_bytes(sent), sizes, [len(p) * row_bytes for p in out])
        for rows, data in zip(into, torch.split(received, sizes), strict=True):
            if rows:
                copy_overlap(data.view(target.dtype).view(-1, *target.shape[1:]), rows, target, wanted)


def node_memory(shape: Sequence[int], dtype: torch.dtype, what: str) -> Tensor:
    """Allocate a tensor with undefined content that all ranks of this node see. All of them call it.

    Raises:
        CapacityError: there is not enough memory.
        RankError: another rank of this node failed.
    """
    return share(lambda: torch.empty(tuple(shape), dtype=dtype, device="cpu"), what=what)


def spread(part: Tensor, begin: int, wanted: Sequence[range], exchange: Exchange, what: str, timeout: float) -> Tensor:
    """Return the rows of a tensor that this node will hold; every rank has a part of the tensor. All ranks call it.

    Args:
        part: ``[count, ...]``: the rows from ``begin`` on; the parts of all ranks contain every row once.
        begin: number of the first row of this part.
        wanted: ``[num_nodes]``: the rows that each node will hold.
        exchange: what to send by.
        what: for errors.
        timeout: seconds to wait for other ranks.

    Returns:
        ``[len(wanted[node]), ...]``: one copy per node.

    Raises:
        FeatureError: the parts do not fit together.
        RankError: another rank failed or is late.
    """
    world = exchange.world
    control.agree(what, {"dtype": str(part.dtype), "shape of a row": list(part.shape[1:])}, timeout=timeout)
    every = control.exchange(f"rows of {what}", {"begin": begin, "end": begin + len(part)}, timeout=timeout)
    parts = [range(other["begin"], other["end"]) for other in every]
    check_parts(parts, what)
    mine, width = wanted[world.node], math.prod(part.shape[1:]) * part.dtype.itemsize
    rows = node_memory((len(mine), *part.shape[1:]), part.dtype, what)
    flows = {  # every rank of a node receives from some ranks of each other
        (sender, ranks[sender % len(ranks)]): overlap(parts[sender], wanted[node])
        for node in range(world.num_nodes)
        for ranks in [world.ranks_of(node)]
        for sender in range(world.world_size)
        if world.nodes[sender] != node
    }
    if width:
        # As bytes, because not all operators support all dtypes; by numpy, because torch would count the writes.
        source, target = (torch.from_numpy(flat_bytes(x).numpy()).view(-1, width) for x in (part, rows))
        have, size = parts[world.rank], world.world_size
        send_rows(source, have, target, mine, flows, world.rank, size, exchange.all_to_all)
    control.exchange(f"{what} is complete", {}, timeout=timeout)
    return rows


def check_parts(parts: Sequence[range], what: str) -> int:
    """Return the number of rows of all parts together; FeatureError if they do not follow each other."""
    end = 0
    for p in sorted((p for p in parts if p), key=lambda p: p.start):
        if p.start != end:
            raise FeatureError(
                f"Expected the parts of {what} to follow each other, got {control.rank_names([parts.index(p)])} with "
                f"rows {p.start} to {p.stop} where row {end} is expected. Pass every row on one rank."
            )
        end = p.stop
    return end
