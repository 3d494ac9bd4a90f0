"""Sums of gradients by row, and updates of rows, on CPUs and GPUs."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from manyhop.system.threads import executor
from manyhop_embedding.gradients import Change, Gradients, Kind, Rule

_ROWS_OF_A_THREAD = 1024  # fewer are not worth handing to another thread


def ids_dtype(device: torch.device, num_rows: int) -> torch.dtype:
    """Return the dtype of sorted ids: a GPU sorts by digits, and int32 has fewer."""
    return torch.int32 if device.type == "cuda" and num_rows < 1 << 31 else torch.int64


def sort_ids(ids: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return ids in ascending order, and ``[count] int64``: their positions before. The sort is stable."""
    count = len(ids)
    if ids.device.type != "cpu" or max(num_rows, count) > 1 << 32:
        found = torch.sort(ids.to(ids_dtype(ids.device, num_rows)), stable=True)
        return found.values, found.indices
    from manyhop_embedding.cpu_kernels import sort_rows  # in a quarter of the time of torch

    ids = ids.long().contiguous()
    scratch, (rows, order) = (torch.empty(2, count, dtype=torch.int64, device="cpu") for _ in range(2))
    sort_rows(ids.data_ptr(), count, num_rows, rows.data_ptr(), order.data_ptr(), scratch.data_ptr())
    return rows, order


def distinct_rows(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return which rows ascending ids have, without waiting for a GPU.

    Returns:
        ``[count + 1] int64``: numbers of different rows before each position, and in total; and ``[count]``: these
        rows, ascending, undefined after the last.
    """
    before = torch.zeros(len(ids) + 1, dtype=torch.int64, device=ids.device)
    before[1:2] = 1
    torch.ne(ids[1:], ids[:-1], out=before[2:])
    before.cumsum_(0)
    return before, ids.new_empty(len(before)).scatter_(0, before[1:], ids)[1:]


def sum_by_row(
    gradients: Gradients, before: Tensor, out: Tensor, first: int = 0, left_out: Tensor | None = None
) -> None:
    """Write the sums of the gradients of rows, without waiting for a GPU.

    Args:
        gradients: in ascending order of their rows.
        before: of :func:`distinct_rows`.
        out: ``[rows, width] float32``: the sums from the one numbered ``first`` on; others are not written.
        left_out: as in :class:`Change`.
    """
    numbered = Gradients(before[1:], gradients.order, gradients.values)
    update(numbered, Change(Rule(Kind.STORE), out, first=1 + first, left_out=left_out))


def update(gradients: Gradients, change: Change) -> None:
    """Apply the sum of the gradients of each row."""
    if gradients.values.is_cuda:
        from manyhop_embedding.gpu import update_on_gpu  # imports triton

        update_on_gpu(gradients, change)
        return
    from manyhop_embedding.cpu_kernels import update_rows

    ids, order, values = gradients.ids, gradients.order, gradients.values
    rule, weight, stamps = change.rule, change.weight, change.stamps
    a, b = ([state.data_ptr() for state in change.states] + [0, 0])[:2]
    stamps_at, stamp = (0, 0) if stamps is None else (stamps[0].data_ptr(), stamps[1])

    def update_part(begin: int, end: int) -> None:
        update_rows(
            int(rule.kind), ids.data_ptr(), order.data_ptr(), begin, end,
            values.data_ptr(), int(values.dtype == torch.float32),
            weight.data_ptr(), int(weight.dtype == torch.float32), change.first, a, b, values.shape[1],
            stamps_at, stamp, change.scale, rule.h0, rule.h1, rule.h2, rule.h3,
        )  # fmt: skip

    ends = torch.tensor([0, *([] if change.left_out is None else change.left_out.tolist()), len(weight)], device="cpu")
    at = torch.searchsorted(ids, change.first + ends).tolist()
    for begin, end in zip(at[::2], at[1::2], strict=True):  # one after the other: as many threads as torch has
        parts = _cut(ids, begin, end)
        others = [executor(len(parts) - 1).submit(update_part, *part) for part in parts[1:]]
        update_part(*parts[0])
        for other in others:
            other.result()


def _cut(ids: Tensor, begin: int, end: int) -> list[tuple[int, int]]:
    """Cut positions of ascending row numbers into ranges for threads; a row is in one of them only."""
    count = end - begin
    parts = min(torch.get_num_threads(), 1 + count // _ROWS_OF_A_THREAD)
    at = torch.tensor([begin + count * k // parts for k in range(1, parts)], dtype=torch.int64, device="cpu")
    return list(pairwise([begin, *torch.searchsorted(ids, ids[at]).tolist(), end]))
