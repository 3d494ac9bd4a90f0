"""One epoch of a loader: its iterator, the stages of its batches on a CPU, and their seeds."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from manyhop.errors import InputError, RankError
from manyhop.features.exchange.row_exchange import ExchangeEndedError, ExchangeLostError
from manyhop.features.gathering import take_thread_counts
from manyhop.loading.adapter import Adapter
from manyhop.loading.keys import BatchContext
from manyhop.loading.lockstep import EpochExchanges
from manyhop.loading.pipeline import BatchPlan, Groups, Pipeline, RankBatch, RankSchedule
from manyhop.loading.pipeline.workers import Task
from manyhop.ranks.watch import Iteration, activity
from manyhop.sampling import BatchKey
from manyhop.system.ranges import ranged

if TYPE_CHECKING:
    from manyhop.loading.gpu.runtime import GPURuntime

Item: TypeAlias = tuple[RankBatch, Any]
"""Input of a batch: its ``RankBatch``, and the positions of its seeds or the key to look them up."""

_BLOCK = 1 << 15  # positions looked up at once
_ENDLESS = 1 << 60
REPLAY = "loader.replay({epoch}, {batch})"
"""Code that makes a failed batch again."""
REPLAY_NEXT = "loader.load_state_dict(loader.state_dict()); next(iter(loader))"
"""The same, for loaders whose batches a user's sampler cuts."""


@dataclass
class Progress:
    """Progress of a loader. Shared by the loader and its latest iterator."""

    epoch: int = 0
    """The current or next epoch."""

    seed: int | None = None
    """The seed drawn for that epoch; ``None``: the loader has a seed for all epochs, or none was drawn yet."""

    first: int = 0
    """Batches of that epoch done before this iteration."""

    begun: bool = False
    """Whether an iterator has begun this epoch."""

    schedule: RankSchedule | None = None
    """The batches of the iterator; ``None`` before it begins."""

    rounds: int | None = None
    """Number of batches of the iterator; ``None``: unknown."""

    received: int = 0
    """Number of batches that the caller has received."""

    ended: bool = False
    """Whether the iterator is exhausted."""

    sampler: Any = None
    """State of the user's sampler at the last batch received, if it has one."""

    @property
    def batch(self) -> int:
        """Batches of the epoch that are done, on all ranks that share them."""
        return self.first if self.schedule is None else self.schedule.after(self.received)

    @property
    def done(self) -> bool:
        """Whether the epoch has ended."""
        return self.ended or (self.received > 0 and self.received == self.rounds)


class EpochIterator(Pipeline[Item, Any]):
    """Yields the batches of one epoch, in order.

    Args:
        progress: updated with each batch.
        length: number of batches of a whole epoch; ``None``: unknown.
        rounds: number of items; ``None``: unknown.
        exchanges: exchanges with other ranks, if any; they end with the iteration.
        watched: reports this rank's progress to other ranks, and their failures to this one.
    """

    def __init__(
        self,
        progress: Progress,
        schedule: RankSchedule,
        items: Iterable[Any],
        make: Callable[[int, Any], Any] | Groups[Any, Any],
        *,
        length: int | None,
        rounds: int | None,
        exchanges: EpochExchanges | None,
        watched: Iteration | None,
        gpu: GPURuntime | None,
        **options: Any,
    ) -> None:
        progress.schedule, progress.rounds = schedule, rounds
        self._progress, self._length = progress, length
        self._watched, self._gpu, self._exchanges = watched, gpu, exchanges
        self._run_ended = self._failed = False
        if watched is not None:
            weakref.finalize(self, watched.left).atexit = False
        super().__init__(
            items,
            make,
            epoch=progress.epoch,
            batch_of=lambda i, item: schedule.of_round(i).batch if item is None else item[0].batch,
            before=None if gpu is None else gpu.streams.settle,
            contents=_contents,
            closing=None if exchanges is None else exchanges.close,
            **options,
        )

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the number of batches is not known: the batch sampler has no length")
        return self._length

    def _receive(self) -> Task[Item, Any]:
        # Runs between two training steps, which empty the processor's caches: it must be short.
        progress, watched = self._progress, self._watched
        if self._run_ended:
            raise InputError(
                "Expected requests for batches before the run ends, got one after "
                "manyhop.shutdown() or dist.destroy_process_group(). End the loop first."
            )
        activity.count += 1
        if self._failed:  # the batch before, which is left out
            self._failed = False
            self._count()
        try:
            if watched is not None and progress.received != progress.rounds:
                watched.requested(self._close)
            task = super()._receive()
        except StopIteration:
            if self._gpu is not None:
                self._gpu.checks.ask(wait=True)
                if not progress.ended:
                    self._gpu.drain()
            progress.ended = True
            if watched is not None:
                watched.ended()
            raise
        except BaseException as error:
            if watched is None:
                raise
            task = Task(0, None, None)
            task.error = error
        if task.error is None:
            self._count()
            if watched is not None:
                watched.received()
            return task
        if watched is not None:
            task.error = self._leave(watched, task.error)
        else:
            self._failed = not self.closed
        del self  # frames of the error refer to this one
        return task

    def _count(self) -> None:
        self._progress.received += 1
        if self.snapshot is not None:
            self._progress.sampler = self.snapshot

    def _leave(self, watched: Iteration, error: BaseException) -> BaseException:
        """End the iteration, as a rank must not continue alone. Return the error for the caller."""
        self._close(error)
        reason = _reason(watched, error)
        if self._exchanges is not None and self._exchanges.lacks_rows:
            reason = _with_warning(reason or error)
        if reason is not None:
            reason.__cause__ = error
        watched.failed(reason or error)
        return reason or error

    def close(self) -> None:
        """End the threads of this epoch."""
        self._close()
        if self._watched is not None:
            self._watched.left()

    def end(self) -> None:
        """End the iteration with the run. The watch reports the reason of other ranks."""
        self._run_ended = not self._progress.done
        self._close()


def _contents(item: Item) -> dict[str, int]:
    return item[0].contents


def _reason(watched: Iteration, error: BaseException) -> RankError | None:
    """Return the watch's explanation for ranks that ended an exchange or missed it."""
    if isinstance(error, ExchangeEndedError) and error.without_reason:
        return watched.reason()
    return watched.explained(error, late=error.may_be_late) if isinstance(error, ExchangeLostError) else None


def _with_warning(error: BaseException) -> RankError:
    """Return an error which adds that the caller's last step used missing rows."""
    ranks = error.ranks if isinstance(error, RankError) else ()
    return RankError(
        f"{error} Rows of the previous batch are also missing: results of its step, and parameters that it updated, "
        "are wrong. Resume from a checkpoint.",
        ranks=ranks,
    )


class Epoch(NamedTuple):
    """An epoch of a loader."""

    seed: int
    """Seed of this rank's batches."""

    number: int
    """Epoch in the keys of batches; 0 if the seed was drawn for this epoch."""

    plan: BatchPlan | None
    """Plan of the batches; ``None``: a user's sampler cuts them."""

    to_index: Callable[[Any], Any]
    """Returns the positions of seeds of an item."""

    exchanges: EpochExchanges | None
    """The exchanges with other ranks, if any."""

    def batch_context(
        self, batch: int, rank_batch: RankBatch, first_call: int = 0, *, exchanges: bool = True
    ) -> BatchContext:
        """Return the context of a batch, after ``first_call`` calls of samplers.

        With ``exchanges``, it may gather rows of other nodes. If it fails before, the other ranks get the error.
        """
        key, steps = BatchKey(self.seed, self.number, batch), self.exchanges
        if steps is None or not exchanges:
            return BatchContext(key, rank_batch, first_call)
        gather, fail = partial(steps.gather, rank_batch.round), partial(steps.fail, rank_batch.round)
        return BatchContext(key, rank_batch, first_call, gather, fail)


def steps_on_cpu(
    adapter: Adapter[Any, Any], epoch: Epoch
) -> tuple[Callable[[int, Item], Any], Callable[[int, Any], Any] | None]:
    """Return the stages of a thread, and the caller's, which hands a batch out; ``None``: not needed."""
    assembler = adapter.assembler
    in_thread = assembler.in_thread
    complete = in_thread and not assembler.hands_out

    @ranged("assemble")
    def collate(batch: int, item: Item) -> Any:
        rank_batch, index = item
        take_thread_counts()  # of other work of this thread
        with epoch.batch_context(batch, rank_batch):
            value = assembler.collate(epoch.to_index(index))
        _count_reads(rank_batch)
        return value if complete else (rank_batch, value)

    def hand_out(batch: int, made: Any) -> Any:
        rank_batch, value = made
        take_thread_counts()
        with epoch.batch_context(batch, rank_batch, 1, exchanges=not in_thread) as context:
            if not in_thread:
                value = assembler.assemble(value)
                context.exchange = None
            value = assembler.hand_out(value)
        _count_reads(rank_batch)
        return value

    return collate, None if complete else hand_out


def _count_reads(rank_batch: RankBatch) -> None:
    """Add the rows that this thread has read from caches of files to the contents of a batch."""
    requested, hits = take_thread_counts()
    if requested:
        contents = rank_batch.contents
        contents["other_rows"] = contents.get("other_rows", 0) + requested
        contents["cached_rows"] = contents.get("cached_rows", 0) + hits


def planned(
    plan: BatchPlan, epoch: int, schedule: RankSchedule, *, by_number: bool
) -> tuple[Iterable[Item], Callable[[Any], torch.Tensor]]:
    """Return the items of a plan's epoch, and a function from item to positions ``[batch_size] int64``.

    Small batches are looked up many at a time: a permutation costs about the same for a few positions as for thousands.
    Items of large batches, or ``by_number``, are numbers of batches.
    """
    many = _BLOCK // plan.batch_size
    if not by_number and many >= 2:
        return _blocks(plan, epoch, schedule, many), lambda positions: positions
    items = ((rank_batch, rank_batch.batch) for rank_batch in schedule)
    return items, lambda batch: torch.from_numpy(plan.indices(epoch, batch))


def _blocks(plan: BatchPlan, epoch: int, schedule: RankSchedule, many: int) -> Iterator[Item]:
    rank_batches = iter(schedule)
    while block := list(itertools.islice(rank_batches, many)):
        positions = plan.many_indices(epoch, [rank_batch.batch for rank_batch in block])
        yield from zip(block, map(torch.from_numpy, positions), strict=True)


def given(batches: Iterable[Any], skip: int, first: int) -> tuple[RankSchedule, Iterable[Item], Callable[[Any], Any]]:
    """Return the schedule and items of a user's sampler, and the identity as function to positions.

    After a restart, its first batches are skipped. Its length may be unknown or wrong.
    """
    schedule = RankSchedule(num_batches=first + _ENDLESS, first=first)
    return schedule, zip(schedule, itertools.islice(iter(batches), skip, None), strict=False), lambda index: index
