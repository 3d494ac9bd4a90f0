"""Rows on their way into memory that several ranks hold together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import torch
from torch import Tensor

from manyhop.features.exchange.chunks import overlap, send_in_chunks
from manyhop.files import Rows
from manyhop.system.progress import Progress

_STAGE_BYTES = 128 << 20  # of each of two pinned buffers


def read_rows(rows: Rows, wanted: range, target: Tensor, *, threads: int | None, progress: bool | None) -> None:
    """Read the rows ``wanted`` of files into ``target``, ``[len(wanted), ...]``; onto a GPU by way of pinned memory.

    While one buffer is copied to the GPU, the next one is read.
    """
    if target.device.type == "cpu":
        rows.read(wanted.start, wanted.stop, out=target, threads=threads, progress=progress)
        return
    width = max(1, target.nbytes // max(1, len(wanted)))
    step = max(1, min(len(wanted), _STAGE_BYTES // width))
    stages = [torch.empty((step, *rows.shape[1:]), dtype=rows.dtype, pin_memory=True) for _ in range(2)]
    copied = [torch.cuda.Event() for _ in stages]  # type: ignore[no-untyped-call]
    files = rows.paths[0].name if len(rows.paths) == 1 else f"{len(rows.paths)} files"
    bar = Progress(f"Reading {files}", target.nbytes, show=progress)
    try:
        for k, begin in enumerate(range(0, len(wanted), step)):
            end = min(begin + step, len(wanted))
            copied[k % 2].synchronize()
            stage = stages[k % 2][: end - begin]
            rows.read(wanted.start + begin, wanted.start + end, out=stage, threads=threads, progress=False)
            target[begin:end].copy_(stage, non_blocking=True)
            copied[k % 2].record()
            bar.add(stage.nbytes)
        torch.cuda.current_stream().synchronize()
    finally:
        bar.close()


def copy_overlap(source: Tensor, rows: range, target: Tensor, wanted: range) -> None:
    """Copy the rows that both have; ``rows`` and ``wanted`` are their numbers in the whole tensor."""
    both = overlap(rows, wanted)
    there = target[both.start - wanted.start : both.stop - wanted.start]
    there.copy_(source[both.start - rows.start : both.stop - rows.start])


def send_rows(
    part: Tensor,
    parts: Sequence[range],
    target: Tensor,
    wanted: Sequence[range],
    rank: int,
    ranks: Sequence[int],
    *,
    timeout: float,
) -> None:
    """Send the rows that ranks have to those that want them, by way of their hosts, a chunk at a time.

    Args:
        part: ``[len(parts[rank]), ...]``: what this rank has.
        parts: ``[num_ranks]``: which rows each rank has.
        target: ``[len(wanted[rank]), ...]``: where the rows go to that this rank wants.
        wanted: ``[num_ranks]``: which rows each rank wants.
        rank: this one, of those.
        ranks: ``[num_ranks]``: which ranks of the run they are: all of them.
        timeout: seconds to wait for other ranks.
    """
    import torch.distributed as dist

    copy_overlap(part, parts[rank], target, wanted[rank])
    if len(ranks) == 1:
        return
    row_bytes = math.prod(target.shape[1:]) * target.dtype.itemsize
    flows = {(a, b): overlap(parts[a], wanted[b]) for a in range(len(ranks)) for b in range(len(ranks)) if a != b}
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
    try:
        send = partial(dist.all_to_all_single, group=group)
        for come, data in send_in_chunks(flows, part, parts[rank].start, rank, len(ranks), row_bytes, send):
            rows = data.view(target.dtype).view(-1, *target.shape[1:])
            copy_overlap(rows, come, target, wanted[rank])
    finally:
        dist.destroy_process_group(group)
