"""Gradients on their way to the ranks that own their rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from manyhop.errors import RankError
from manyhop.features.exchange.peers import Peers, wait_for
from manyhop.ranks import world
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop_embedding.gradients import Gradients
from manyhop_embedding.place import Owners
from manyhop_embedding.updating import distinct_rows, ids_dtype, sort_ids, sum_by_row

_INACTIVE = -1  # sent instead of positions: there was no backward


class GradientExchange:
    """Sends sums of gradients to the owners of their rows. Several ranks create it, all of them, and call it in step.

    Args:
        device: where gradients are: the CPU, or this rank's GPU.
        name: for errors.
        timeout: seconds to wait for other ranks; ``None``: 600.
    """

    def __init__(self, device: torch.device, name: str, timeout: float | None) -> None:
        self._world, self._device, self._name = world.current(), device, name
        with self._on_device():
            self._peers: Peers | None = Peers(device, timeout or DEFAULT_TIMEOUT)
        world.at_shutdown(self.close)
        self._nothing = torch.zeros(1, device=device)
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
            before, ids = distinct_rows(held.ids)
            ends = before[torch.searchsorted(held.ids, self._bounds[owners])]  # of the sums for each rank
            if gradients is None:
                ends.fill_(_INACTIVE)
            theirs = torch.empty_like(ends)
            dist.all_to_all_single(theirs, ends, group=peers.group)
            on_host = torch.stack([ends, theirs]).to("cpu", non_blocking=True)
            arrived = torch.cuda.current_stream().record_event() if held.ids.is_cuda else None
            sums = torch.empty(len(held.ids), width, dtype=torch.float32, device=self._device)
            sum_by_row(held, before, sums, left_out=ends[rank] if owners.num_copies == 1 else None)
            if arrived is not None:
                arrived.synchronize()
            sent, received = on_host.tolist()
            if all(begin == _INACTIVE for begin, _ in received):
                return None
            to_ranks = [slice(*each) for each in sent]
            from_ranks = [slice(*each) for each in pairwise(accumulate((e - b for b, e in received), initial=0))]
            count = from_ranks[-1].stop
            got_ids, got_sums = ids.new_empty(count), sums.new_empty(count, width)
            ids_arrive, sums_arrive = (
                peers.swap_each(self._others(got, from_ranks), self._others(given, to_ranks))
                for got, given in ((got_ids, ids), (got_sums, sums))
            )
            got_ids[from_ranks[rank]].copy_(ids[to_ranks[rank]])
            sum_by_row(held, before, got_sums[from_ranks[rank]], to_ranks[rank].start)  # while others are on their way
            wait_for(ids_arrive)
            found = sort_ids(got_ids, owners.num_rows)  # while the sums arrive
            wait_for(sums_arrive)
        return Gradients(*found, got_sums)

    def _others(self, rows: Tensor, parts: list[slice]) -> list[Tensor]:
        """Return the part of the rows of each rank; none for this one."""
        return [rows[:0] if rank == self._world.rank else rows[part] for rank, part in enumerate(parts)]

    def _none(self, width: int, dtype: torch.dtype) -> Gradients:
        ids = torch.empty(0, dtype=dtype, device=self._device)
        return Gradients(ids, ids.long(), torch.empty(0, width, device=self._device))

    def wait(self) -> None:
        """Wait for all ranks, on a GPU in its stream. All ranks call it."""
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
