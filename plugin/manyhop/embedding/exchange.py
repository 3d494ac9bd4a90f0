"""Gradients on their way to the ranks that own their rows."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
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

    def send(self, gradients: Gradients | None, owners: Owners, width: int) -> Gradients | None:
        """Sum gradients, send sums, and receive those of the rows that this rank owns. All ranks call it.

        Args:
            gradients: in ascending order of their rows; ``None``: there was no ``backward`` on this rank.
            owners: of the rows.
            width: numbers of a row.

        Returns:
            The sums of all ranks, those of a row in the order of ranks; ``None``: there was no ``backward`` on any.

        Raises:
            RankError: another rank is gone or late.
        """
        import torch.distributed as dist

        held = self._none(width) if gradients is None else gradients
        with self._failing():
            if owners not in self._bounds:
                self._bounds[owners] = owners.bounds(self._device)
            before = rows_before(held)
            routes = before[torch.searchsorted(held.ids, self._bounds[owners])]
            active = torch.full_like(routes[:, 0], int(gradients is not None))
            sent = torch.stack([routes[:, 1] - routes[:, 0], active], 1)
            received = torch.empty_like(sent)
            dist.all_to_all_single(received, sent, group=self._group)
            counts = _OnHost(torch.cat([routes, received], 1))
            ids, sums = sum_by_row(held, before)  # while the counts are on their way
            begins, ends, expected, actives = counts.columns()
            if not any(actives):
                return None
            spans = list(zip(begins, ends, strict=True))
            got_ids, ids_arrive = self._route(ids, spans, expected)
            got_sums, sums_arrive = self._route(sums, spans, expected)
            ids_arrive()
            found = Gradients.of(got_ids, got_sums, num_rows=owners.num_rows)  # sorts while sums are on their way
            sums_arrive()
        return found

    def _route(
        self, values: Tensor, spans: list[tuple[int, int]], expected: list[int]
    ) -> tuple[Tensor, Callable[[], object]]:
        """Send spans of values to all ranks, and receive theirs.

        Args:
            values: ``[rows, ...]``.
            spans: per rank: begin and end of the rows that it gets.
            expected: per rank: how many rows come from it.

        Returns:
            What comes from all ranks, one after the other; to be used when the function has been called: on a GPU, the
            current stream then waits.
        """
        import torch.distributed as dist

        received = values.new_empty(sum(expected), *values.shape[1:])
        if self._device.type == "cpu":  # gloo has no collective for lists of tensors
            sizes = [end - begin for begin, end in spans]
            dist.all_to_all_single(received, _joined(values, spans), expected, sizes, group=self._group)
            return received, lambda: None
        sent, got = [values[begin:end] for begin, end in spans], list(torch.split(received, expected))
        rank = self._world.rank
        own, place = sent[rank], got[rank]
        sent[rank] = got[rank] = received[:0]
        work = dist.all_to_all(got, sent, group=self._group, async_op=True)
        place.copy_(own)  # while the others are on their way
        return received, work.wait

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

    def columns(self) -> list[list[int]]:
        """Return the columns, when they are there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        columns: list[list[int]] = self._matrix.t().tolist()
        return columns


def _joined(values: Tensor, spans: list[tuple[int, int]]) -> Tensor:
    """Return what goes to each rank, one after the other: a view, where all goes once and in this order."""
    if all(end == begin for (_, end), (begin, _) in itertools.pairwise(spans)):
        return values[spans[0][0] : spans[-1][1]]
    return torch.cat([values[begin:end] for begin, end in spans])
