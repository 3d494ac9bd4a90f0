"""Gradients on their way to the ranks that own their rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate, islice, pairwise
from typing import Any

import torch
from torch import Tensor

from manyhop import world
from manyhop.control import DEFAULT_TIMEOUT
from manyhop.embedding.gradients import Gradients, ids_dtype
from manyhop.embedding.owners import Owners
from manyhop.embedding.updating import distinct_rows, numbered, sum_apart, sum_by_row
from manyhop.errors import RankError

_PARTS = 3
_LARGE = 1 << 26
"""Bytes of a rank's gradients from which on they travel in ``_PARTS`` parts: a step updates one part of the rows while
the next ones are on their way. Each part takes the host of an H200 about 0.15 ms."""
_INACTIVE = -1  # sent instead of a number of gradients: there was no backward


class GradientExchange:
    """Sends sums of gradients to the owners of their rows. All ranks make it, and call it in step.

    Args:
        device: where gradients are: the CPU, or this rank's GPU.
        name: for errors.
        timeout: seconds to wait for other ranks; ``None``: 600.
    """

    def __init__(self, device: torch.device, name: str, timeout: float | None) -> None:
        self._world, self._device, self._name = world.init(timeout=timeout or DEFAULT_TIMEOUT), device, name
        self._group: Any = None
        if not self._world.is_alone:
            self._group = _new_group(device, timeout or DEFAULT_TIMEOUT)
            world.at_shutdown(self.close)
            size = self._world.world_size
            self._numbers, self._nothing = _OnHost(size * (3 * _PARTS + 5), device), torch.zeros(1, device=device)
            lengths = [size * columns for columns in (_PARTS + 1, _PARTS + 2, _PARTS + 2)]
            at, routes, received = torch.split(self._numbers.values, lengths)
            self._at, self._routes, self._received = at.view(size, -1), routes.view(size, -1), received.view(size, -1)
        self._bounds: dict[Owners, Tensor] = {}

    def send(self, gradients: Gradients | None, owners: Owners, width: int) -> Iterator[Gradients] | None:
        """Sum gradients, send sums, and receive those of the rows that this rank owns. All ranks call it.

        Args:
            gradients: in ascending order of their rows; ``None``: there was no ``backward`` on this rank.
            owners: of the rows.
            width: numbers of a row.

        Returns:
            The sums of all ranks, those of a row in the order of ranks, in one or several parts: the next one is on its
            way. ``None``: there was no ``backward`` on any rank.

        Raises:
            RankError: another rank is gone or late; also when a part is taken.
        """
        dtype, rank = ids_dtype(self._device, owners.num_rows), self._world.rank
        held = self._none(width, dtype) if gradients is None else gradients
        with self._failing(), self._on_device():
            if owners not in self._bounds:
                self._bounds[owners] = owners.bounds(_PARTS, dtype, self._device)
            before, ids = distinct_rows(held)
            self._exchange_counts(held, before, self._bounds[owners], is_active=gradients is not None)
            # What only this rank needs is summed when the rest is on its way.
            apart = self._at[rank] if self._device.type == "cuda" and owners.num_copies == 1 else None
            by_number = numbered(held, before)
            sums = sum_by_row(by_number, apart)
            routes = self._read_routes(width)
            if routes is None:
                return None
            count = routes.ends[-1]
            got_ids, got_sums = ids.new_empty(count), sums.new_empty(count, width)
            ids_arrive = self._begin(ids, got_ids, routes, 0, routes.parts)
            arrivals = [self._begin(sums, got_sums, routes, 0, 1)]
            own, place = (slice(each[rank][0], each[rank][-1]) for each in (routes.sent, routes.received))
            got_ids[place].copy_(ids[own])
            if apart is None:
                got_sums[place].copy_(sums[own])
            else:
                sum_apart(by_number, *routes.apart, own.start, got_sums[place])
            # All parts are on their way before the first is updated: each waits for what was launched before it.
            arrivals += [self._begin(sums, got_sums, routes, k, k + 1) for k in range(1, routes.parts)]
            ids_arrive()
            sizes = [begins[-1] - begins[0] for begins in routes.received]
            found = Gradients.merged(got_ids, got_sums, sizes, num_rows=owners.num_rows)
        return self._arriving(found, routes.ends, arrivals)

    def _exchange_counts(self, held: Gradients, before: Tensor, bounds: Tensor, *, is_active: bool) -> None:
        """Begin to read where the sums for each rank are, and how many come from it.

        Args:
            held: in ascending order of their rows.
            before: of :func:`manyhop.embedding.updating.distinct_rows`.
            bounds: of :meth:`manyhop.embedding.owners.Owners.bounds`.
            is_active: whether there was a ``backward`` on this rank.
        """
        import torch.distributed as dist

        total = len(held.ids) if is_active else _INACTIVE
        if held.ids.is_cuda:
            from manyhop.embedding.gpu_routes import routes_on_gpu  # imports triton

            routes_on_gpu(held.ids, before, bounds, total, self._at, self._routes)
        else:
            torch.searchsorted(held.ids, bounds, out=self._at)
            self._routes[:, :-1] = before[self._at]
            self._routes[:, -1] = total
        dist.all_to_all_single(self._received, self._routes, group=self._group)
        self._numbers.send()

    def _read_routes(self, width: int) -> _Routes | None:
        """Return what goes where, when it is known; ``None``: there was no ``backward`` on any rank."""
        rank, numbers = self._world.rank, iter(self._numbers.read())
        at, sent, received = (
            [list(islice(numbers, each.shape[1])) for _ in range(each.shape[0])]
            for each in (self._at, self._routes, self._received)
        )
        most = max(row.pop() for row in received)
        if most == _INACTIVE:
            return None
        step = 1 if 4 * width * most >= _LARGE else _PARTS
        received = [row[::step] for row in received]
        begins = accumulate((row[-1] - row[0] for row in received), initial=0)
        places = [[begin + one - row[0] for one in row] for begin, row in zip(begins, received, strict=False)]
        ends = [sum(column) - sum(row[0] for row in received) for column in zip(*received, strict=True)]
        return _Routes([row[:-1:step] for row in sent], places, ends, (at[rank][0], at[rank][-1]))

    def _begin(self, values: Tensor, received: Tensor, routes: _Routes, begin: int, end: int) -> Callable[[], object]:
        """Begin to send parts of values to all other ranks, and to receive theirs.

        Args:
            values: ``[rows, ...]``.
            received: gets what comes.
            routes: of the values.
            begin: the first part.
            end: the part after the last.

        Returns:
            A function to call before they are read: on a GPU, the current stream then waits.
        """
        import torch.distributed as dist

        sent, got = (
            [tensor[row[begin] : row[end]] for row in rows]
            for tensor, rows in ((values, routes.sent), (received, routes.received))
        )
        sent[self._world.rank] = got[self._world.rank] = received[:0]
        if self._device.type == "cuda":
            works = [dist.all_to_all(got, sent, group=self._group, async_op=True)]
        else:  # gloo has no collective for lists of tensors
            works = [
                transfer(each, rank, group=self._group)
                for transfer, tensors in ((dist.irecv, got), (dist.isend, sent))
                for rank, each in enumerate(tensors)
                if len(each)
            ]
        return lambda: [work.wait() for work in works]

    def _arriving(
        self, gradients: Gradients, ends: list[int], arrivals: list[Callable[[], object]]
    ) -> Iterator[Gradients]:
        """Return parts of gradients, each when it has come."""
        for ends_of_part, arrive in zip(pairwise(ends), arrivals, strict=True):
            with self._failing():
                arrive()
            yield gradients.part(*ends_of_part)

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


@dataclass(frozen=True)
class _Routes:
    """Which sums come from where and go where: in parts, by ranges of the rows that a rank owns."""

    sent: list[list[int]]
    """Per rank: where the sums of each part for it begin, and where the last ones end."""

    received: list[list[int]]
    """Per rank: where its sums of each part are put, and where the last ones end."""

    ends: list[int]
    """How many sums come from all ranks before each part, and in all."""

    apart: tuple[int, int]
    """Begin and end of the positions of gradients whose rows this rank owns."""

    @property
    def parts(self) -> int:
        """Their number, the same on all ranks."""
        return len(self.ends) - 1


def _new_group(device: torch.device, timeout: float) -> Any:
    """All ranks, for gradients alone."""
    import torch.distributed as dist

    limit = timedelta(seconds=timeout)
    if device.type == "cpu":
        return dist.new_group(backend="gloo", timeout=limit)
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)  # over the update of the part before
    options._timeout = limit
    return dist.new_group(backend="nccl", timeout=limit, pg_options=options)
