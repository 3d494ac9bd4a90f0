"""Sums of gradients by row, and updates of rows, on CPUs and GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from manyhop.system.threads import executor
from manyhop_embedding.gradients import Change, Gradients, Kind, Rule

_STORE = Rule(Kind.STORE)
_ROWS_OF_A_THREAD = 1024  # fewer are not worth handing to another thread


def sort_gradients(ids: Tensor, values: Tensor, *, num_rows: int) -> Gradients:
    """Sort gradients by row; gradients of a row remain in their order.

    Args:
        ids: ``[count]`` int64 or int32 in ``[0, num_rows)``.
        values: ``[count, width]`` float32 or bfloat16.
        num_rows: of the table.
    """
    return Gradients(*sort_ids(ids, num_rows), values.contiguous())


def merge_gradients(ids: Tensor, values: Tensor, sizes: Sequence[int], *, num_rows: int) -> Gradients:
    """Sort gradients that consist of runs of ``sizes``, each in ascending order of its rows."""
    if ids.is_cuda:
        from manyhop_embedding.gpu import MOST_RUNS, merge_on_gpu  # imports triton

        if len(sizes) <= MOST_RUNS:
            return Gradients(*merge_on_gpu(ids, sizes), values)
    return sort_gradients(ids, values, num_rows=num_rows)


def ids_dtype(device: torch.device, num_rows: int) -> torch.dtype:
    """Return the dtype of sorted ids: a GPU sorts by digits, and int32 has fewer."""
    return torch.int32 if device.type == "cuda" and num_rows < 1 << 31 else torch.int64


def sort_ids(ids: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return ids in ascending order, and ``[count] int64``: their positions before. The sort is stable."""
    return _sorted_on_cpu(ids, num_rows) if ids.device.type == "cpu" else _sorted_on_gpu(ids, num_rows)


def _sorted_on_cpu(ids: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return ids in ascending order, and their positions before, in a quarter of the time of torch."""
    if max(num_rows, len(ids)) > 1 << 32:
        found = torch.sort(ids.long(), stable=True)
        return found.values, found.indices
    from manyhop_embedding.cpu_kernels import sort_rows

    ids, count = ids.long().contiguous(), len(ids)
    rows, order = (
        torch.empty(count, dtype=torch.int64, device="cpu"),
        torch.empty(count, dtype=torch.int64, device="cpu"),
    )
    scratch = torch.empty(2, count, dtype=torch.int64, device="cpu")
    sort_rows(ids.data_ptr(), count, num_rows, rows.data_ptr(), order.data_ptr(), scratch.data_ptr())
    return rows, order


def _sorted_on_gpu(ids: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return ids in ascending order, and their positions before."""
    found = torch.sort(ids.to(ids_dtype(ids.device, num_rows)), stable=True)
    return found.values, found.indices


def distinct_rows(gradients: Gradients) -> tuple[Tensor, Tensor]:
    """Return ``[count + 1] int64``: numbers of different rows before each position, and in total; and ``[count]``:
    these rows, ascending, undefined after the last.
    """
    ids = gradients.ids
    if ids.is_cuda:
        from manyhop_embedding.gpu import number_on_gpu  # imports triton

        return number_on_gpu(ids)
    before = torch.zeros(len(ids) + 1, dtype=torch.int64)
    before[1:2] = 1
    torch.ne(ids[1:], ids[:-1], out=before[2:])
    before.cumsum_(0)
    return before, ids.new_empty(len(before)).scatter_(0, before[1:], ids)[1:]


def numbered(gradients: Gradients, before: Tensor) -> Gradients:
    """Return gradients with the numbers 1, 2, ... of their rows; ``before``: of :func:`distinct_rows`."""
    return Gradients(before[1:], gradients.order, gradients.values)


def sum_by_row(gradients: Gradients, apart: Tensor | None = None) -> Tensor:
    """Sum the gradients of each row, without waiting for a GPU.

    Args:
        gradients: of :func:`numbered`.
        apart: of a GPU, ``[2] int64``: from the first to the last, positions for :func:`sum_apart`, none of
            whose rows has others.

    Returns:
        ``[count, width] float32``, undefined beyond the number of rows, and for the positions ``apart``.
    """
    values = gradients.values
    sums = torch.empty(len(values), values.shape[1], dtype=torch.float32, device=values.device)
    update(gradients, Change(_STORE, sums, first=1, apart=apart))
    return sums


def sum_apart(gradients: Gradients, begin: int, end: int, first: int, out: Tensor) -> None:
    """Write the sums that :func:`sum_by_row` has left out to ``out [count, width] float32``.

    Args:
        gradients: as there.
        begin: of the positions.
        end: of the positions.
        first: number of rows before these positions.
        out: written.
    """
    update(gradients.part(begin, end), Change(_STORE, out, first=1 + first))


def update(gradients: Gradients, change: Change) -> None:
    """Apply the sum of the gradients of each row."""
    if gradients.values.is_cuda or change.hot or change.apart is not None:
        from manyhop_embedding.gpu import update_on_gpu  # imports triton

        update_on_gpu(gradients, change)
    else:
        _update_on_cpu(gradients, change)


def _update_on_cpu(gradients: Gradients, change: Change) -> None:
    from manyhop_embedding.cpu_kernels import update_rows

    ids, order, values = gradients.ids, gradients.order, gradients.values
    rule, weight, stamps = change.rule, change.weight, change.stamps
    a, b = ([state.data_ptr() for state in change.states] + [0, 0])[:2]
    stamps_at, stamp = (0, 0) if stamps is None else (stamps.of_rows.data_ptr(), stamps.value)

    def update_part(begin: int, end: int) -> None:
        update_rows(
            int(rule.kind), ids.data_ptr(), order.data_ptr(), begin, end,
            values.data_ptr(), int(values.dtype == torch.float32),
            weight.data_ptr(), int(weight.dtype == torch.float32), change.first, a, b, values.shape[1],
            stamps_at, stamp, change.scale, rule.h0, rule.h1, rule.h2, rule.h3,
        )  # fmt: skip

    begin, end = gradients.ends
    parts = _cut(ids, begin, end, min(torch.get_num_threads(), 1 + (end - begin) // _ROWS_OF_A_THREAD))
    others = [executor(len(parts) - 1).submit(update_part, *part) for part in parts[1:]]
    update_part(*parts[0])
    for other in others:
        other.result()


def _cut(ids: Tensor, begin: int, end: int, parts: int) -> list[tuple[int, int]]:
    """Cut positions of ascending row numbers into ranges of about the same length; a row is in one of them only."""
    at = torch.tensor([begin + (end - begin) * k // parts for k in range(1, parts)], dtype=torch.int64)
    cuts = [begin, *torch.searchsorted(ids, ids[at]).tolist(), end]
    return [(cuts[k], cuts[k + 1]) for k in range(parts)]
