"""The epoch of a loader, and the stages of its batches on a CPU: those of a thread, and those of the caller."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from manyhop.features import cached_files as hot_files
from manyhop.loading.adapter import Adapter
from manyhop.loading.iterator import Item
from manyhop.loading.keys import BatchContext
from manyhop.loading.pipeline import BatchPlan, EpochExchanges, RankBatch
from manyhop.sampling import BatchKey
from manyhop.system.ranges import ranged


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

    def batch_context(self, batch: int, rank_batch: RankBatch, first_call: int = 0) -> BatchContext:
        """Return the context of a batch, after ``first_call`` calls of samplers."""
        return BatchContext(BatchKey(self.seed, self.number, batch), rank_batch, first_call)

    def in_step(self, rank_batch: RankBatch) -> AbstractContextManager[None]:
        """Return the context for gathering rows of other nodes for a batch."""
        return nullcontext() if self.exchanges is None else self.exchanges.batch(rank_batch.round)


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
        with epoch.batch_context(batch, rank_batch), epoch.in_step(rank_batch):
            value = _counting_reads(rank_batch, assembler.collate, epoch.to_index(index))
        return value if complete else (rank_batch, value)

    def hand_out(batch: int, made: Any) -> Any:
        rank_batch, value = made
        with epoch.batch_context(batch, rank_batch, first_call=1):
            if not in_thread:
                with epoch.in_step(rank_batch):
                    value = _counting_reads(rank_batch, assembler.assemble, value)
            return _counting_reads(rank_batch, assembler.hand_out, value)

    return collate, None if complete else hand_out


def _counting_reads(rank_batch: RankBatch, work: Callable[[Any], Any], value: Any) -> Any:
    """Return ``work(value)``, and add the rows that it reads from caches of files to the contents of the batch."""
    hot_files.take_thread_counts()  # of other work of this thread
    made = work(value)
    requested, hits = hot_files.take_thread_counts()
    if requested:
        contents = rank_batch.contents
        contents["other_rows"] = contents.get("other_rows", 0) + requested
        contents["cached_rows"] = contents.get("cached_rows", 0) + hits
    return made
