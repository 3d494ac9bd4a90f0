"""Gradients on their way to the ranks that own their rows."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from manyhop import world
from manyhop.control import DEFAULT_TIMEOUT
from manyhop.embedding.gradients import Gradients
from manyhop.embedding.owners import Owners
from manyhop.embedding.updating import rows_before, sum_by_row
from manyhop.errors import RankError

_PARTS = 4
_LARGE = {"cuda": 1 << 26, "cpu": 1 << 60}
"""Bytes of gradients that are sent in parts: a GPU computes while others are on their way."""


class GradientExchange:
    """Sends sums of gradients to the owners of their rows. All ranks make it, and call it in step.

    Args:
        device: where gradients are: the CPU, or this rank's GPU.
        name: for errors.
        timeout: seconds to wait for other ranks; ``None``: 600.
    """

    def __init__(self, device: torch.device, name: str, timeout: float | None) -> None:
        import torch.distributed as dist

        self._world, self._device, self._name = world.init(timeout=timeout or DEFAULT_TIMEOUT), device, name
        self._group: Any = None
        if not self._world.is_alone:
            backend = "nccl" if device.type == "cuda" else "gloo"
            self._group = dist.new_group(backend=backend, timeout=timedelta(seconds=timeout or DEFAULT_TIMEOUT))
            world.at_shutdown(self.close)
        self._bounds: dict[Owners, Tensor] = {}

    def send(self, gradients: Gradients | None, owners: Owners, width: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Sum gradients, send sums, and receive those of the rows that this rank owns. All ranks call it.

        Many rows are sent in parts, so that an update of one part takes the GPU while the next is on its way.

        Args:
            gradients: in ascending order of their rows; ``None``: there was no ``backward`` on this rank.
            owners: of the rows.
            width: numbers of a row.

        Yields:
            ``[count] int64`` and ``[count, width] float32``: rows and sums of all ranks, one after the other, of rows
            that no other part has. Nothing at all: there was no ``backward`` on any rank.

        Raises:
            RankError: another rank is gone or late.
        """
        held = self._none(width) if gradients is None else gradients
        with self._failing():
            if owners not in self._bounds:
                self._bounds[owners] = owners.bounds(_PARTS, self._device)
            before = rows_before(held)
            routes = before[torch.searchsorted(held.ids, self._bounds[owners])]
            wish = 0 if gradients is None else 1 + (4 * len(held.ids) * width >= _LARGE[self._device.type])
            wishes = torch.full_like(routes[:, :1, 0], wish)
            sent = torch.cat([routes[..., 1] - routes[..., 0], wishes], 1)
            received = torch.empty_like(sent)
            self._all_to_all(received, sent, None, None).wait()
            counts = _OnHost(torch.cat([routes.flatten(1), received], 1))
            ids, sums = sum_by_row(held, before)  # while the counts are on their way
            spans, expected, most = _read(counts.rows())
            if most == 0:
                return
            if most == 1:
                spans, expected = _joined(spans), [[sum(column)] for column in expected]
            arriving = [
                self._start(ids, sums, [of_rank[k] for of_rank in spans], [of_rank[k] for of_rank in expected])
                for k in range(len(spans[0]))
            ]
        for got_ids, got_sums, works in arriving:
            with self._failing():
                for work in works:
                    work.wait()
            yield got_ids, got_sums

    def _start(
        self, ids: Tensor, sums: Tensor, spans: list[tuple[int, int]], expected: list[int]
    ) -> tuple[Tensor, Tensor, list[Any]]:
        """Send a part of rows and sums; return where those of all ranks arrive, and what to wait for."""
        sizes = [end - begin for begin, end in spans]
        got_ids = torch.empty(sum(expected), dtype=torch.int64, device=self._device)
        got_sums = torch.empty(sum(expected), sums.shape[1], device=self._device)
        works = [
            self._all_to_all(got_ids, _routed(ids, spans), expected, sizes),
            self._all_to_all(got_sums, _routed(sums, spans), expected, sizes),
        ]
        return got_ids, got_sums, works

    def _none(self, width: int) -> Gradients:
        ids = torch.empty(0, dtype=torch.int64, device=self._device)
        return Gradients(ids, ids, torch.empty(0, width, device=self._device))

    def wait(self) -> None:
        """Wait until all ranks have come here: on a GPU, its stream waits. All ranks call it."""
        import torch.distributed as dist

        with self._failing():
            dist.all_reduce(torch.zeros(1, device=self._device), group=self._group)

    def close(self) -> None:
        """Give the connections back."""
        import torch.distributed as dist

        group, self._group = self._group, None
        if group is not None:
            with contextlib.suppress(RuntimeError, ValueError, AssertionError):  # the default group is gone already
                dist.destroy_process_group(group)

    def _all_to_all(self, received: Tensor, sent: Tensor, expected: list[int] | None, sizes: list[int] | None) -> Any:
        import torch.distributed as dist

        return dist.all_to_all_single(received, sent, expected, sizes, group=self._group, async_op=True)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        if self._group is None:
            raise RankError(f"{self._name}: the run has ended. Make the optimizer again after manyhop.init().")
        try:
            yield
        except RuntimeError as error:
            raise RankError(
                f"{self._name}: gradients could not be exchanged: {str(error).splitlines()[0]}. Every rank has to call "
                "step() equally often; look whether one failed or waits elsewhere."
            ) from error


class _OnHost:
    """A small matrix of integers on its way to the host.

    Args:
        matrix: ``[rows, columns] int64``.
    """

    def __init__(self, matrix: Tensor) -> None:
        self._matrix, self._arrived = matrix, None
        if matrix.is_cuda:
            self._matrix = torch.empty(matrix.shape, dtype=matrix.dtype, pin_memory=True)
            self._matrix.copy_(matrix, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def rows(self) -> list[list[int]]:
        """Return the rows, when they are there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        rows: list[list[int]] = self._matrix.tolist()
        return rows


Spans = list[list[tuple[int, int]]]
"""Of each rank and part: where its sums begin and end."""


def _read(rows: list[list[int]]) -> tuple[Spans, list[list[int]], int]:
    """Return what goes to each rank in each part, how much comes from it, and the largest wish of all ranks."""
    ends = 2 * _PARTS
    spans = [list(zip(row[:ends:2], row[1:ends:2], strict=True)) for row in rows]
    return spans, [row[ends:-1] for row in rows], max(row[-1] for row in rows)


def _joined(spans: Spans) -> Spans:
    """Return the spans of all parts together, which follow each other."""
    return [[(of_rank[0][0], of_rank[-1][1])] for of_rank in spans]


def _routed(values: Tensor, spans: list[tuple[int, int]]) -> Tensor:
    """Return what goes to each rank, one after the other: a view, where all goes once and in this order."""
    if all(end == begin for (_, end), (begin, _) in itertools.pairwise(spans)):
        return values[spans[0][0] : spans[-1][1]]
    return torch.cat([values[begin:end] for begin, end in spans])
