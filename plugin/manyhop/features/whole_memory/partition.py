"""Parts of a tensor that GPUs hold, and how their rows are read or sent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from manyhop.errors import FeatureError, InputError
from manyhop.features.sources import Shards
from manyhop.files import Rows
from manyhop.system.progress import Progress

Kind = Literal["continuous", "distributed"]
"""``continuous``: one range of addresses over the memory of a node's GPUs. ``distributed``: every rank reads its own
part only."""

# WholeGraph allocates pages of this size, and larger ones for large tensors.
_PAGE, _LARGE_PAGE, _LARGE = 2 << 20, 512 << 20, 16 << 30


@dataclass(frozen=True)
class Division:
    """A tensor of a shape, divided among the ranks that hold it together."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    num_ranks: int
    kind: Kind

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(f"Expected a kind of {', '.join(get_args(Kind))}, got {self.kind!r}.")
        if not self.shape or any(n < 0 for n in self.shape):
            raise FeatureError(f"Expected the shape [num_rows, ...], got {list(self.shape)}.")
        if self.row_bytes == 0:
            raise FeatureError(f"Expected rows of at least one number, got the shape {list(self.shape)}.")

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.row_bytes

    @property
    def shards(self) -> Shards:
        return Shards(self.shape[0], self.num_ranks)

    @property
    def partition(self) -> list[int]:
        """Return ``[num_ranks]``: rows that are allocated for each rank; WholeGraph demands one at least."""
        shards = self.shards
        if shards.num_rows < self.num_ranks:
            return [1] * self.num_ranks
        return [len(shards.rows_of(rank)) for rank in range(self.num_ranks)]

    @property
    def allocated_bytes(self) -> int:
        """Bytes requested of WholeGraph, of all ranks together."""
        return sum(self.partition) * self.row_bytes

    def bytes_of_ranks(self) -> list[int]:
        """Return ``[num_ranks]``: bytes that each rank allocates: whole pages."""
        total, ranks = self.allocated_bytes, range(self.num_ranks)
        if self.kind == "continuous":
            page = _LARGE_PAGE if total >= _LARGE else _PAGE
            pages = -(-total // page)
            return [((r + 1) * pages // self.num_ranks - r * pages // self.num_ranks) * page for r in ranks]
        page = _LARGE_PAGE if total > _LARGE else _PAGE
        return [-(-rows * self.row_bytes // page) * page for rows in self.partition]


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
    stages = [torch.empty((step, *rows.shape[1:]), dtype=rows.dtype, device="cpu", pin_memory=True) for _ in range(2)]
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
