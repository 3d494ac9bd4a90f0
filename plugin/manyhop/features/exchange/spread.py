"""Rows that ranks have come to the nodes that are to hold them, into memory that the ranks of a node share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.features.exchange.chunks import overlap, send_in_chunks
from manyhop.features.exchange.host import Exchange
from manyhop.memory.sharing import share
from manyhop.ranks import control
from manyhop.system.arrays import flat_bytes

Bytes = npt.NDArray[np.uint8]


def node_memory(shape: Sequence[int], dtype: torch.dtype, what: str) -> Tensor:
    """Allocate a tensor with undefined content that all ranks of this node see. All of them call it.

    Raises:
        CapacityError: there is not enough memory.
        RankError: another rank of this node failed.
    """
    return share(lambda: torch.empty(tuple(shape), dtype=dtype), what=what)


def spread(part: Tensor, begin: int, wanted: Sequence[range], exchange: Exchange, what: str, timeout: float) -> Tensor:
    """Return the rows that this node wants of a tensor of which every rank has a part. All ranks call it.

    Args:
        part: ``[count, ...]``: the rows from ``begin`` on; those of all ranks together are all rows, each once.
        begin: number of the first row of this part.
        wanted: ``[num_nodes]``: the rows that each node is to hold.
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
    parts = _agree_on_parts(part, begin, what, timeout)
    part = part.contiguous()
    mine = wanted[world.node]
    rows = node_memory((len(mine), *part.shape[1:]), part.dtype, what)
    width = math.prod(part.shape[1:]) * part.dtype.itemsize
    here = overlap(parts[world.rank], mine)
    source, target = _bytes(part), _bytes(rows)
    _copy(source, here, begin, target, mine.start, width)
    if world.num_nodes > 1 and width > 0:
        _send(torch.from_numpy(source), target, parts, wanted, width, exchange)
    control.exchange(f"{what} is complete", {}, timeout=timeout)
    return rows


def _send(
    source: Tensor, target: Bytes, parts: list[range], wanted: Sequence[range], width: int, exchange: Exchange
) -> None:
    """Send rows to the other nodes; every rank of a node receives from some ranks of each other."""
    world = exchange.world
    flows = {
        (sender, ranks[sender % len(ranks)]): overlap(parts[sender], wanted[node])
        for node in range(world.num_nodes)
        for ranks in [world.ranks_of(node)]
        for sender in range(world.world_size)
        if world.nodes[sender] != node
    }
    begin, first = parts[world.rank].start, wanted[world.node].start
    rows = source.view(-1, width)  # bytes, as not all operators of torch know all dtypes
    for come, data in send_in_chunks(flows, rows, begin, world.rank, world.world_size, width, exchange.all_to_all):
        _copy(data.numpy(), come, come.start, target, first, width)


def _agree_on_parts(part: Tensor, begin: int, what: str, timeout: float) -> list[range]:
    """``[world_size]``: the rows that each rank has; checked."""
    control.agree(what, {"dtype": str(part.dtype), "shape of a row": list(part.shape[1:])}, timeout=timeout)
    every = control.exchange(f"rows of {what}", {"begin": begin, "end": begin + len(part)}, timeout=timeout)
    parts = [range(other["begin"], other["end"]) for other in every]
    end = 0
    for p in sorted((p for p in parts if p), key=lambda p: p.start):
        if p.start != end:
            raise FeatureError(
                f"Expected the parts of {what} to follow each other, got {control.rank_names([parts.index(p)])} with "
                f"rows {p.start} to {p.stop} where row {end} comes next. Give every row to one rank."
            )
        end = p.stop
    return parts


def _copy(source: Bytes, rows: range, begin: int, target: Bytes, first: int, width: int) -> None:
    """Copy some rows; ``begin`` and ``first`` are the numbers of the first rows of source and target."""
    rows_there = slice((rows.start - first) * width, (rows.stop - first) * width)
    target[rows_there] = source[(rows.start - begin) * width : (rows.stop - begin) * width]


def _bytes(tensor: Tensor) -> Bytes:
    """The memory of a tensor. Torch does not count writing to it as a change, of which ranks have different numbers."""
    return flat_bytes(tensor).numpy()
