"""One epoch of a loader."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from manyhop.pipeline import BatchPlan, Pipeline, Stats, WorkerPool

_BLOCK = 4096  # positions looked up at once


@dataclass
class Progress:
    """Where a loader stands. Shared by the loader and its latest iterator."""

    epoch: int = 0
    """The epoch under way, or to come."""

    batch: int = 0
    """Batches of that epoch that the user has received."""

    begun: bool = False
    """Whether an iterator has begun this epoch."""

    done: bool = False
    """Whether the epoch has ended."""

    sampler: Any = None
    """State of the user's sampler as of the last batch received, where it has one."""


@dataclass(frozen=True, kw_only=True)
class Threads:
    """How the batches of an epoch are made ahead."""

    num_workers: int
    prefetch: int
    timeout: float | None
    worker_init: Callable[[int], None] | None
    pool: WorkerPool | None


class EpochIterator(Iterator[Any]):
    """Hands out the batches of one epoch, in order.

    Args:
        progress: is kept up to date.
        items: one item per batch, from the first one to be made.
        make: ``make(batch, item)`` makes a batch, in a thread.
        finish: ``finish(batch, value)`` completes it in the caller's thread; ``None``: nothing is left to do.
        snapshot: state of the user's sampler.
        length: number of batches of the whole epoch; ``None`` where it is not known.
    """

    def __init__(
        self,
        progress: Progress,
        items: Iterable[Any],
        make: Callable[[int, Any], Any],
        finish: Callable[[int, Any], Any] | None,
        threads: Threads,
        stats: Stats,
        snapshot: Callable[[], Any] | None,
        length: int | None,
    ) -> None:
        self._progress = progress
        self._length = length
        self._pipeline: Pipeline[Any, Any] = Pipeline(
            items,
            make,
            num_workers=threads.num_workers,
            prefetch=threads.prefetch,
            epoch=progress.epoch,
            first_batch=progress.batch,
            timeout=threads.timeout,
            worker_init=threads.worker_init,
            pool=threads.pool,
            finish=finish,
            snapshot=snapshot,
            stats=stats,
        )

    def __iter__(self) -> EpochIterator:
        return self

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the number of batches is not known: the batch sampler has no length")
        return self._length

    def __next__(self) -> Any:
        progress = self._progress
        try:
            value = next(self._pipeline)
        except StopIteration:
            progress.done = True
            raise
        progress.batch = self._pipeline.delivered
        progress.sampler = self._pipeline.snapshot
        progress.done = progress.batch == self._length
        return value

    def close(self) -> None:
        """End the threads that belong to this epoch."""
        self._pipeline.close()


def planned(plan: BatchPlan, epoch: int, first: int) -> tuple[Iterable[Any], Callable[[Any], torch.Tensor]]:
    """Items of a plan's epoch, and item -> positions ``[batch_size] int64``.

    A permutation costs about as much for a few positions as for thousands, so those of small batches are looked up many
    batches at a time.
    """
    many = _BLOCK // plan.batch_size
    if many < 2:
        return range(first, len(plan)), lambda batch: torch.from_numpy(plan.indices(epoch, batch))
    return _blocks(plan, epoch, first, many), lambda positions: positions


def _blocks(plan: BatchPlan, epoch: int, first: int, many: int) -> Iterator[torch.Tensor]:
    blocks = replace(plan, batch_size=plan.batch_size * many, drop_last=False)
    for batch in range(first, len(plan)):
        block, at = divmod(batch, many)
        if at == 0 or batch == first:
            positions = torch.from_numpy(blocks.indices(epoch, block))
        yield positions[at * plan.batch_size : (at + 1) * plan.batch_size]


def given(batches: Iterable[Any], first: int) -> tuple[Iterable[Any], Callable[[Any], Any]]:
    """The same for the user's own sampler, whose first batches are taken and dropped after a restart."""
    return itertools.islice(iter(batches), first, None), lambda item: item
