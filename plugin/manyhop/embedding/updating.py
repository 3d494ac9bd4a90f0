"""Sums of gradients by row, and updates of rows: by the CPU's kernels or the GPU's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from manyhop.embedding.gradients import Gradients
from manyhop.embedding.hot import Hot
from manyhop.embedding.rules import Kind, Rule, Stamps
from manyhop.system.threads import executor

_ROWS_OF_A_THREAD = 1024  # fewer are not worth handing to another thread


def rows_before(gradients: Gradients) -> Tensor:
    """Return ``[count + 1] int64``: how many different rows come before each position, and in all."""
    ids = gradients.ids
    before = torch.zeros(len(ids) + 1, dtype=torch.int64, device=ids.device)
    before[1:2] = 1
    torch.cumsum(ids[1:] != ids[:-1], 0, out=before[2:])
    before[2:] += 1
    return before


def sum_by_row(gradients: Gradients, before: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the gradients of each row, without waiting for a GPU.

    Args:
        gradients: in ascending order of their rows.
        before: of :func:`rows_before`.

    Returns:
        ``[count] int64``: rows, ascending, each once, and ``[count, width] float32``: their sums. Both are undefined
        from ``before[-1]`` on.
    """
    values, place = gradients.values, before[1:] - 1
    rows = torch.empty_like(gradients.ids).scatter_(0, place, gradients.ids)
    sums = torch.empty(len(rows), values.shape[1], dtype=torch.float32, device=values.device)
    update(Rule(Kind.STORE), Gradients(place, gradients.order, values), sums, (), first=0, scale=1.0)
    return rows, sums


def update(
    rule: Rule,
    gradients: Gradients,
    weight: Tensor,
    states: Sequence[Tensor],
    *,
    first: int,
    scale: float,
    stamps: Stamps | None = None,
    hot: Sequence[Hot] = (),
) -> None:
    """Apply the sum of the gradients of each row.

    Args:
        rule: what to do.
        gradients: their rows are in ``[first, first + len(weight))``.
        weight: ``[rows, width]`` float32 or bfloat16, contiguous: in GPU memory or pinned, if the gradients are on a
            GPU.
        states: as many as the rule has, each ``[rows, width] float32``.
        first: the number of the first row of ``weight``.
        scale: what sums are multiplied by.
        stamps: marks the rows that are updated.
        hot: rows of ``weight`` and of each state that reside elsewhere, the same of all; of one GPU.
    """
    if gradients.values.is_cuda or hot:
        from manyhop.embedding.gpu import update_on_gpu  # imports triton

        update_on_gpu(rule, gradients, weight, states, first=first, scale=scale, stamps=stamps, hot=hot)
    else:
        _update_on_cpu(rule, gradients, weight, states, first=first, scale=scale, stamps=stamps)


def _update_on_cpu(
    rule: Rule,
    gradients: Gradients,
    weight: Tensor,
    states: Sequence[Tensor],
    *,
    first: int,
    scale: float,
    stamps: Stamps | None,
) -> None:
    from manyhop.embedding.cpu_kernels import update_rows

    ids, order, values = gradients.ids, gradients.order, gradients.values
    a, b = ([state.data_ptr() for state in states] + [0, 0])[:2]
    stamps_at, stamp = (0, 0) if stamps is None else (stamps.of_rows.data_ptr(), stamps.value)

    def update_part(begin: int, end: int) -> None:
        update_rows(
            int(rule.kind), ids.data_ptr(), order.data_ptr(), begin, end,
            values.data_ptr(), int(values.dtype == torch.float32),
            weight.data_ptr(), int(weight.dtype == torch.float32), first, a, b, values.shape[1],
            stamps_at, stamp, scale, rule.h0, rule.h1, rule.h2, rule.h3,
        )  # fmt: skip

    parts = _cut(ids, min(torch.get_num_threads(), 1 + len(ids) // _ROWS_OF_A_THREAD))
    others = [executor(len(parts) - 1).submit(update_part, *part) for part in parts[1:]]
    update_part(*parts[0])
    for other in others:
        other.result()


def _cut(ids: Tensor, parts: int) -> list[tuple[int, int]]:
    """Cut ascending row numbers into ranges of about the same length; a row is in one of them only."""
    count = len(ids)
    at = torch.tensor([count * k // parts for k in range(1, parts)], dtype=torch.int64)
    cuts = [0, *torch.searchsorted(ids, ids[at]).tolist(), count]
    return [(cuts[k], cuts[k + 1]) for k in range(parts)]
