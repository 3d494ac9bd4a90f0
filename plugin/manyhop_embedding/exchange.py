"""Gradients on their way to the ranks that own their rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise

import torch
from torch import Tensor

from manyhop.errors import RankError
from manyhop.features.exchange.peers import Peers
from manyhop.ranks import world
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop_embedding.gradients import Gradients
from manyhop_embedding.place import Owners
from manyhop_embedding.updating import distinct_rows, ids_dtype, merge_gradients, numbered, sum_apart, sum_by_row

_INACTIVE = -1  # sent instead of a number of gradients: there was no backward


class GradientExchange:
    """Sends sums of gradients to the owners of their rows. All ranks create it, and call it in step.

    Args:
        device: where gradients are: the CPU, or this rank's GPU.
        name: for errors.
        timeout: seconds to wait for other ranks; ``None``: 600.
    """

    def __init__(self, device: torch.device, name: str, timeout: float | None) -> None:
        self._world, self._device, self._name = world.init(timeout=timeout or DEFAULT_TIMEOUT), device, name
        self._peers: Peers | None = None
        if not self._world.is_alone:
            with self._on_device():
                self._peers = Peers(device, timeout or DEFAULT_TIMEOUT)
            world.at_shutdown(self.close)
            size = self._world.world_size
            self._numbers, self._nothing = _OnHost(8 * size, device), torch.zeros(1, device=device)
            at, routes, received = torch.split(self._numbers.values, [2 * size, 3 * size, 3 * size])
            self._at, self._routes, self._received = at.view(size, -1), routes.view(size, -1), received.view(size, -1)
        self._bounds: dict[Owners, Tensor] = {}

    def send(self, gradients: Gradients | None, owners: Owners, width: int) -> Gradients | None:
        """Sum gradients, send sums, and receive sums of the rows that this rank owns. All ranks call it.

        Args:
            gradients: in ascending order of their rows; ``None``: there was no ``backward`` on this rank.
            owners: of the rows.
            width: numbers of a row.

        Returns:
            The sums of all ranks; sums of a row are in the order of ranks. ``None``: there was no ``backward`` on any
            rank.

        Raises:
            RankError: another rank is lost or late.
        """
        dtype, rank = ids_dtype(self._device, owners.num_rows), self._world.rank
        held = self._none(width, dtype) if gradients is None else gradients
        with self._failing() as peers, self._on_device():
            if owners not in self._bounds:
                self._bounds[owners] = owners.bounds(dtype, self._device)
            before, ids = distinct_rows(held)
            self._exchange_counts(peers, held, before, self._bounds[owners], is_active=gradients is not None)
            # Gradients of own rows are summed while other sums are sent.
            apart = self._at[rank] if self._device.type == "cuda" and owners.num_copies == 1 else None
            by_number = numbered(held, before)
            sums = sum_by_row(by_number, apart)
            routes = self._read_routes()
            if routes is None:
                return None
            got_ids, got_sums = ids.new_empty(routes.count), sums.new_empty(routes.count, width)
            ids_arrive, sums_arrive = (
                peers.swap_each(self._others(got, routes.received), self._others(sent, routes.sent))
                for got, sent in ((got_ids, ids), (got_sums, sums))
            )
            own, place = (slice(*each[rank]) for each in (routes.sent, routes.received))
            got_ids[place].copy_(ids[own])
            if apart is None:
                got_sums[place].copy_(sums[own])
            else:
                sum_apart(by_number, *routes.apart, own.start, got_sums[place])
            ids_arrive.wait()
            sizes = [end - begin for begin, end in routes.received]
            found = merge_gradients(got_ids, got_sums, sizes, num_rows=owners.num_rows)
            sums_arrive.wait()
        return found

    def _exchange_counts(
        self, peers: Peers, held: Gradients, before: Tensor, bounds: Tensor, *, is_active: bool
    ) -> None:
        """Begin to exchange the positions and numbers of the sums for each rank.

        Args:
            peers: the other ranks.
            held: in ascending order of their rows.
            before: of :func:`manyhop_embedding.updating.distinct_rows`.
            bounds: of :meth:`manyhop_embedding.place.Owners.bounds`.
            is_active: whether there was a ``backward`` on this rank.
        """
        import torch.distributed as dist

        total = len(held.ids) if is_active else _INACTIVE
        if held.ids.is_cuda:
            from manyhop_embedding.gpu import routes_on_gpu  # imports triton

            routes_on_gpu(held.ids, before, bounds, total, self._at, self._routes)
        else:
            torch.searchsorted(held.ids, bounds, out=self._at)
            self._routes[:, :-1] = before[self._at]
            self._routes[:, -1] = total
        dist.all_to_all_single(self._received, self._routes, group=peers.group)
        self._numbers.send()

    def _read_routes(self) -> _Routes | None:
        """Wait for the routes; ``None``: there was no ``backward`` on any rank."""
        rank, numbers = self._world.rank, iter(self._numbers.read())
        at, sent, received = (
            [tuple(islice(numbers, each.shape[1])) for _ in range(each.shape[0])]
            for each in (self._at, self._routes, self._received)
        )
        if max(total for _, _, total in received) == _INACTIVE:
            return None
        ends = list(accumulate((end - begin for begin, end, _ in received), initial=0))
        sent_ends, apart = [(begin, end) for begin, end, _ in sent], (at[rank][0], at[rank][1])
        return _Routes(sent_ends, list(pairwise(ends)), ends[-1], apart)

    def _others(self, rows: Tensor, ends: list[tuple[int, int]]) -> list[Tensor]:
        """Return ``[ranks]``, the rows between the ends of each rank; none for this one."""
        return [rows[:0] if rank == self._world.rank else rows[slice(*each)] for rank, each in enumerate(ends)]

    def _none(self, width: int, dtype: torch.dtype) -> Gradients:
        ids = torch.empty(0, dtype=dtype, device=self._device)
        return Gradients(ids, ids.long(), torch.empty(0, width, device=self._device))

    def wait(self) -> None:
        """Wait for all ranks, on a GPU in its stream. All ranks call it."""
        import torch.distributed as dist

        with self._failing() as peers:
            dist.all_reduce(self._nothing, group=peers.group)

    def close(self) -> None:
        """Close the connections."""
        peers, self._peers = self._peers, None
        if peers is not None:
            peers.close()

    def _on_device(self) -> contextlib.AbstractContextManager[object]:
        """Let this rank's GPU be the current one."""
        return torch.cuda.device(self._device) if self._device.type == "cuda" else contextlib.nullcontext()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[Peers]:
        """Return the other ranks within the context."""
        if self._peers is None:
            raise RankError(f"{self._name}: the run has ended. Make the optimizer again after manyhop.init().")
        try:
            yield self._peers
        except RuntimeError as error:
            raise RankError(
                f"{self._name}: gradients could not be exchanged: {str(error).splitlines()[0]}. Every rank must call "
                "step() the same number of times; look whether one failed or waits elsewhere."
            ) from error


class _OnHost:
    """Integers on their way to the host: memory for all steps.

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
        """Begin to copy them."""
        if self._arrived is not None:
            self._there.copy_(self.values, non_blocking=True)
            self._arrived.record()

    def read(self) -> list[int]:
        """Wait for the copy, and return them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        values: list[int] = self._there.tolist()
        return values


@dataclass(frozen=True)
class _Routes:
    """The sums that a rank sends and receives."""

    sent: list[tuple[int, int]]
    """Per rank: begin and end of the sums for it."""

    received: list[tuple[int, int]]
    """Per rank: begin and end of the sums from it."""

    count: int
    """Number of received sums."""

    apart: tuple[int, int]
    """Begin and end of the positions of gradients whose rows this rank owns."""
