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
from manyhop.embedding.gradients import Gradients, ids_dtype
from manyhop.embedding.owners import Owners
from manyhop.embedding.updating import distinct_rows, numbered, sum_apart, sum_by_row
from manyhop.errors import RankError

_INACTIVE = -1  # sent instead of a number of rows: there was no backward


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
            size = self._world.world_size
            self._numbers, self._nothing = _OnHost(3 * size, device), torch.zeros(1, device=device)
            self._at, self._sent = (torch.empty(shape, dtype=torch.int64, device=device) for shape in ((size, 2), size))
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
        dtype, rank = ids_dtype(self._device, owners.num_rows), self._world.rank
        held = self._none(width, dtype) if gradients is None else gradients
        with self._failing(), self._on_device():
            if owners not in self._bounds:
                self._bounds[owners] = owners.bounds(dtype, self._device)
            before, ids = distinct_rows(held)
            self._exchange_counts(held, before, self._bounds[owners], is_active=gradients is not None)
            # What only this rank needs is summed when the rest is on its way.
            apart = self._at[rank] if self._device.type == "cuda" and owners.num_copies == 1 else None
            by_number = numbered(held, before)
            sums = sum_by_row(by_number, apart)
            spans, expected = self._counts()
            if max(expected) == _INACTIVE:
                return None
            expected = [max(count, 0) for count in expected]

            def own_sums(place: Tensor) -> None:
                if apart is None:
                    place.copy_(sums[slice(*spans[rank])])
                else:
                    sum_apart(by_number, apart, spans[rank][0], place)

            got_ids, ids_arrive = self._route(ids, spans, expected, lambda place: place.copy_(ids[slice(*spans[rank])]))
            got_sums, sums_arrive = self._route(sums, spans, expected, own_sums)
            ids_arrive()
            # Beside the exchange of sums.
            found = Gradients.merged(got_ids, got_sums, expected, num_rows=owners.num_rows)
            sums_arrive()
        return found

    def _exchange_counts(self, held: Gradients, before: Tensor, bounds: Tensor, *, is_active: bool) -> None:
        """Begin to read where the sums for each rank are, and how many come from it.

        Args:
            held: in ascending order of their rows.
            before: of :func:`manyhop.embedding.updating.distinct_rows`.
            bounds: of :meth:`manyhop.embedding.owners.Owners.bounds`.
            is_active: whether there was a ``backward`` on this rank.
        """
        import torch.distributed as dist

        routes, received = self._numbers.values[: bounds.numel()], self._numbers.values[bounds.numel() :]
        if held.ids.is_cuda:
            from manyhop.embedding.gpu_routes import routes_on_gpu  # imports triton

            routes_on_gpu(held.ids, before, bounds, self._at, routes, self._sent, is_active=is_active)
        else:
            torch.searchsorted(held.ids, bounds, out=self._at)
            torch.index_select(before, 0, self._at.view(-1), out=routes)
            self._sent.copy_(routes[1::2] - routes[::2] if is_active else torch.full_like(received, _INACTIVE))
        dist.all_to_all_single(received, self._sent, group=self._group)
        self._numbers.send()

    def _counts(self) -> tuple[list[tuple[int, int]], list[int]]:
        """Return begin and end of the sums for each rank, and how many come from it, or ``_INACTIVE``."""
        numbers, size = self._numbers.read(), self._world.world_size
        return list(zip(numbers[: 2 * size : 2], numbers[1 : 2 * size : 2], strict=True)), numbers[2 * size :]

    def _route(
        self,
        values: Tensor,
        spans: list[tuple[int, int]],
        expected: list[int],
        write_own: Callable[[Tensor], object],
    ) -> tuple[Tensor, Callable[[], object]]:
        """Send spans of values to all ranks, and receive theirs.

        Args:
            values: ``[rows, ...]``.
            spans: per rank: begin and end of the rows that it gets.
            expected: per rank: how many rows come from it.
            write_own: of a GPU, writes this rank's own part to its place while the others are on their way.

        Returns:
            What comes from all ranks, one after the other, and a function to call before it is read: on a GPU, the
            current stream then waits.
        """
        import torch.distributed as dist

        received = values.new_empty(sum(expected), *values.shape[1:])
        if self._device.type == "cpu":  # gloo has no collective for lists of tensors
            sizes = [end - begin for begin, end in spans]
            dist.all_to_all_single(received, _joined(values, spans), expected, sizes, group=self._group)
            return received, lambda: None
        sent, got = [values[begin:end] for begin, end in spans], list(torch.split(received, expected))
        place, rank = got[self._world.rank], self._world.rank
        sent[rank] = got[rank] = received[:0]
        work = dist.all_to_all(got, sent, group=self._group, async_op=True)
        write_own(place)
        return received, work.wait

    def _none(self, width: int, dtype: torch.dtype) -> Gradients:
        ids = torch.empty(0, dtype=dtype, device=self._device)
        return Gradients(ids, ids.long(), torch.empty(0, width, device=self._device))

    def wait(self) -> None:
        """Wait until all ranks have come here: on a GPU, its stream waits. All ranks call it."""
        import torch.distributed as dist

        with self._failing():
            dist.all_reduce(self._nothing, group=self._group)

    def close(self) -> None:
        """Give the connections back."""
        import torch.distributed as dist

        group, self._group = self._group, None
        if group is not None:
            with contextlib.suppress(RuntimeError, ValueError, AssertionError):  # the default group is gone already
                dist.destroy_process_group(group)

    def _on_device(self) -> contextlib.AbstractContextManager[object]:
        """Let this rank's GPU be the current one."""
        return torch.cuda.device(self._device) if self._device.type == "cuda" else contextlib.nullcontext()

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
    """Integers on their way to the host: memory for all steps, each of which waits for them.

    Args:
        count: how many.
        device: where they are.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.values = torch.empty(count, dtype=torch.int64, device=device)
        self._there, self._arrived = self.values, None
        if device.type == "cuda":
            self._there = torch.empty(count, dtype=torch.int64, pin_memory=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def send(self) -> None:
        """Copy them when they are there."""
        if self._arrived is not None:
            self._there.copy_(self.values, non_blocking=True)
            self._arrived.record()

    def read(self) -> list[int]:
        """Return them, when they have come."""
        if self._arrived is not None:
            self._arrived.synchronize()
        values: list[int] = self._there.tolist()
        return values


def _joined(values: Tensor, spans: list[tuple[int, int]]) -> Tensor:
    """Return what goes to each rank, one after the other: a view, where all goes once and in this order."""
    if all(end == begin for (_, end), (begin, _) in itertools.pairwise(spans)):
        return values[spans[0][0] : spans[-1][1]]
    return torch.cat([values[begin:end] for begin, end in spans])
