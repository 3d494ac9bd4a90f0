"""Gradients of rows, the rules by which optimizers apply them, and the updates themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from torch import Tensor

from manyhop.features import CachedRows, HotRows
from manyhop.system.threads import executor


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
            from manyhop_embedding.gpu import MOST_RUNS, merge_on_gpu  # imports triton

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


class Kind(IntEnum):
    """What a kernel does with the gradient of a row."""

    STORE = 0
    """The row becomes the gradient."""
    SGD = 1
    ADAM = 2
    ADAGRAD = 3
    RMSPROP = 4


@dataclass(frozen=True)
class Rule:
    """One update: ``g`` is the gradient of a row, ``w`` the row, ``a`` and ``b`` its states; float32 throughout.

    ============ =============================================================================================
    ``SGD``      ``w -= h0 g``
    ``ADAM``     ``a += h1 (g - a)``, ``b += h2 (g g - b)``, ``w -= h0 (a / (sqrt(b) + h3))``
    ``ADAGRAD``  ``a += g g``, ``w -= h0 (g / (sqrt(a) + h3))``
    ``RMSPROP``  ``a += h1 (g g - a)``, ``w -= h0 (g / (sqrt(a) + h3))``
    ============ =============================================================================================
    """

    kind: Kind
    h0: float = 0.0
    h1: float = 0.0
    h2: float = 0.0
    h3: float = 0.0


@dataclass(frozen=True)
class Stamps:
    """Marks on rows: which update was the latest."""

    of_rows: Tensor
    """``[rows, 1] int32``, contiguous, of the rows that are updated, in memory of the same kind."""

    value: int
    """The number of this update."""


PIECE = 64
"""Gradients of a row are added in pieces that end at multiples of this, of positions in the order of rows: a GPU adds
pieces at the same time, and the sum has the same bits everywhere."""


@dataclass(frozen=True)
class Hot:
    """The only place of some rows: memory of the others has outdated ones."""

    ids: Tensor
    """``[count] int64``, ascending, on the GPU."""
    rows_set: HotRows
    """The same ids, as kernels look them up."""
    rows: Tensor
    """``[count, width]``, on the GPU."""

    @staticmethod
    def of(ids: Tensor, rows_set: HotRows, held: Tensor) -> Hot:
        """Copy the rows ``ids`` of ``held [num_rows, width]`` to the GPU that the ids are on."""
        return Hot(ids, rows_set, held[ids.to(held.device)].to(ids.device))

    def source(self, held: Tensor) -> CachedRows:
        """Return what gathers read all rows from, on the GPU."""
        return CachedRows(held, self.rows_set, self.rows)

    def settle(self, held: Tensor) -> None:
        """Copy the rows to their places in ``held``, where the host reads them."""
        if self.rows.is_cuda:
            torch.cuda.synchronize(self.rows.device)  # updates of the others
        held[self.ids.to(held.device)] = self.rows.to(held.device)

    def take(self, held: Tensor) -> None:
        """Copy the rows from ``held``, which the host has changed."""
        self.rows.copy_(held[self.ids.to(held.device)])


@dataclass(frozen=True)
class Change:
    """What happens to the rows that have gradients."""

    rule: Rule
    """What to do with the sum of the gradients of a row."""

    weight: Tensor
    """``[rows, width]`` float32 or bfloat16, contiguous: in GPU memory or pinned, if the gradients are on a GPU. The
    gradients are of these rows only."""

    states: Sequence[Tensor] = ()
    """As many as the rule has, each ``[rows, width] float32``."""

    first: int = 0
    """The number of the first row of ``weight``."""

    scale: float = 1.0
    """What sums are multiplied by."""

    stamps: Stamps | None = None
    """Marks the rows that are updated."""

    hot: Sequence[Hot] = ()
    """Rows of ``weight`` and of each state that reside elsewhere, the same of all; of one GPU."""

    apart: Tensor | None = None
    """``[2] int64`` on a GPU: positions of gradients, which the host does not know. Those from the first to the
    last are left out; none of their rows has others."""


_STORE = Rule(Kind.STORE)
_ROWS_OF_A_THREAD = 1024  # fewer are not worth handing to another thread


def distinct_rows(gradients: Gradients) -> tuple[Tensor, Tensor]:
    """Return ``[count + 1] int64``: how many different rows come before each position, and in all; and ``[count]``:
    these rows, ascending, undefined from their number on.
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
        first: how many rows come before those at these positions.
        out: where sums go.
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
