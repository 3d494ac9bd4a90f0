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
from manyhop.embedding.owners import Owners
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

    def send(self, gradients: tuple[Tensor, Tensor] | None, owners: Owners, width: int) -> tuple[Tensor, Tensor] | None:
        """Send sums, and receive those of the rows that this rank owns. All ranks call it.

        Args:
            gradients: ``[count] int64``, ascending, each once, and ``[count, width] float32``; ``None``: there was no
                ``backward`` on this rank.
            owners: of the rows.
            width: numbers of a row.

        Returns:
            The same of all ranks, one after the other; ``None``: there was no ``backward`` on any rank.

        Raises:
            RankError: another rank is gone or late.
        """
        ids, sums = gradients or (
            torch.empty(0, dtype=torch.int64, device=self._device),
            torch.empty(0, width, device=self._device),
        )
        with self._failing():
            routes = owners.route(ids)
            counts = [end - begin for begin, end in routes]
            told = torch.tensor([[count, int(gradients is not None)] for count in counts], device=self._device)
            heard = torch.empty_like(told)
            self._all_to_all(heard, told, None, None)
            expected, active = heard.t().tolist()
            if not any(active):
                return None
            got_ids = torch.empty(sum(expected), dtype=torch.int64, device=self._device)
            got_sums = torch.empty(sum(expected), width, device=self._device)
            self._all_to_all(got_ids, _routed(ids, routes), expected, counts)
            self._all_to_all(got_sums, _routed(sums, routes), expected, counts)
        return got_ids, got_sums

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

    def _all_to_all(self, received: Tensor, sent: Tensor, expected: list[int] | None, sizes: list[int] | None) -> None:
        import torch.distributed as dist

        dist.all_to_all_single(received, sent, expected, sizes, group=self._group)

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


def _routed(values: Tensor, routes: list[tuple[int, int]]) -> Tensor:
    """Return what goes to each rank, one after the other: a view, where all goes once and in this order."""
    if all(end == begin for (_, end), (begin, _) in itertools.pairwise(routes)):
        return values[routes[0][0] : routes[-1][1]]
    return torch.cat([values[begin:end] for begin, end in routes])
