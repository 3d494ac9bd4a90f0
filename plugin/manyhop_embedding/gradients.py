"""Gradients of rows, as kernels read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Gradients:
    """Gradients of rows, some of the same row, in ascending order of their rows."""

    ids: Tensor
    """``[count]`` int64, on a GPU also int32: row numbers, ascending."""

    order: Tensor
    """``[count] int64``: the gradient of each, in the order that gradients of the same row are added."""

    values: Tensor
    """``[count, width]`` float32 or bfloat16, contiguous, on the same device."""

    pieces: list[Tensor] = field(default_factory=list)
    """Of a GPU, which sums parts of a row that has many gradients at the same time: these sums, made once; at first
    none."""

    positions: tuple[int, int] | None = None
    """Begin and end of those that are meant, none of whose rows has others; ``None``: all."""

    @property
    def ends(self) -> tuple[int, int]:
        """Begin and end of those that are meant."""
        return self.positions or (0, len(self.ids))

    def part(self, begin: int, end: int) -> Gradients:
        """Return the same gradients, of which some positions are meant: sums do not depend on where they are cut."""
        return Gradients(self.ids, self.order, self.values, self.pieces.copy(), (begin, end))

    @staticmethod
    def of(ids: Tensor, values: Tensor, *, num_rows: int) -> Gradients:
        """Sort gradients by row; those of the same row keep their order.

        Args:
            ids: ``[count]`` int64 or int32 in ``[0, num_rows)``.
            values: ``[count, width]`` float32 or bfloat16.
            num_rows: of the table.
        """
        return Gradients(*sort_ids(ids, num_rows), values.contiguous())

    @staticmethod
    def merged(ids: Tensor, values: Tensor, sizes: Sequence[int], *, num_rows: int) -> Gradients:
        """Do what :meth:`of` does for runs of ``sizes`` gradients, each in ascending order of its rows."""
        if ids.is_cuda:
            from manyhop_embedding.gpu_routes import MOST_RUNS, merge_on_gpu  # imports triton

            if len(sizes) <= MOST_RUNS:
                return Gradients(*merge_on_gpu(ids, sizes), values)
        return Gradients.of(ids, values, num_rows=num_rows)


def ids_dtype(device: torch.device, num_rows: int) -> torch.dtype:
    """Return the dtype of sorted ids: a GPU sorts by digits, of which int32 has fewer."""
    return torch.int32 if device.type == "cuda" and num_rows < 1 << 31 else torch.int64


def sort_ids(ids: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return ids in ascending order, equal ones as they were, and ``[count] int64``: their positions before."""
    return _sorted_on_cpu(ids, num_rows) if ids.device.type == "cpu" else _sorted_on_gpu(ids, num_rows)


def _sorted_on_cpu(ids: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return ids in ascending order, and their positions before, in a quarter of the time of torch."""
    if max(num_rows, len(ids)) > 1 << 32:
        found = torch.sort(ids.long(), stable=True)
        return found.values, found.indices
    from manyhop_embedding.cpu_kernels import sort_rows

    ids, count = ids.long().contiguous(), len(ids)
    rows, order = torch.empty(count, dtype=torch.int64), torch.empty(count, dtype=torch.int64)
    scratch = torch.empty(2, count, dtype=torch.int64)
    sort_rows(ids.data_ptr(), count, num_rows, rows.data_ptr(), order.data_ptr(), scratch.data_ptr())
    return rows, order


def _sorted_on_gpu(ids: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return ids in ascending order, and their positions before."""
    found = torch.sort(ids.to(ids_dtype(ids.device, num_rows)), stable=True)
    return found.values, found.indices
