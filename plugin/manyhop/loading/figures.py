"""What a loader reports: where its tensors reside, its speed, its last batches; and caches of files, filled first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Literal

import torch

from manyhop.features import FileCache, file_cache, only_counting
from manyhop.features.hot import files as hot_files
from manyhop.loading.adapter import Adapter
from manyhop.loading.keys import BatchContext
from manyhop.loading.pipeline import BatchPlan, RankBatch, Stats, StatsReport, save_timeline
from manyhop.memory.placement import GPUPlacement
from manyhop.ranks import world
from manyhop.sampling import BatchKey


class Figures:
    """The part of a loader that reports figures."""

    _gpu: Any
    _stats: Stats

    def _sources(self) -> list[Any]:
        """Return the tensors that batches take rows from."""
        raise NotImplementedError

    def _file_caches(self) -> list[tuple[Any, FileCache]]:
        """Return the tensors in files that batches take rows from, with the rows of them that memory keeps."""
        every = [(value, file_cache(value)) for value in self._sources()] if len(hot_files.caches) else []
        return [(value, cache) for value, cache in every if cache is not None]

    @property
    def placement(self) -> GPUPlacement | None:
        """Where topology and features reside, and why; ``None`` as long as no GPU makes the batches."""
        return None if self._gpu is None else self._gpu.memory.placement

    def stats(self, since: StatsReport | Literal["epoch"] | None = None) -> StatsReport:
        """Speed, where the time goes, and what to do about it; ``print`` shows a table.

        Args:
            since: return the figures since then: ``"epoch"``, the beginning of the present or last epoch, or an earlier
                report of this loader.

        Raises:
            InputError: ``since`` is something else, or of another loader.
        """
        if self._gpu is not None:
            self._gpu.streams.take_times()
            requested, hits = self._gpu.memory.take_cache_counts()
            self._stats.count(other_rows=requested, cached_rows=hits)
        of_files = self._file_caches()
        for value, cache in of_files:
            requested, hits = cache.take_counts()
            if self._gpu is not None and self._gpu.memory.caches(value):
                requested = 0  # those that the GPU lacked, which it has counted
            self._stats.count(other_rows=requested, cached_rows=hits)
        kept = hot_files.in_words(cache for _, cache in of_files)
        parts = ["" if self.placement is None else self.placement.summary(), kept]
        return replace(self._stats.report(since), placement="; ".join(filter(None, parts)))

    def timeline(self, path: str | PathLike[str]) -> None:
        """Save a picture of the last batches of this rank: ``.svg``, ``.png`` or ``.json`` (for ui.perfetto.dev).

        ``manyhop timeline FILES -o OUT`` puts the ``.json`` files of all ranks into one.
        """
        if self._gpu is not None:
            self._gpu.streams.take_times()
        save_timeline(self._stats, path)


_MOST_BATCHES = 64


def warm_up_caches(adapter: Adapter[Any, Any], plan: BatchPlan, caches: Sequence[FileCache]) -> None:
    """Make batches of epoch 0 and drop them, until caches have counted enough reads. Runs no user code.

    Args:
        adapter: adapter of a loader that makes batches on the CPU.
        plan: the plan of the batches, with seed 0 instead of the loader's.
        caches: caches of the tensors that batches read.
    """
    assembler = adapter.assembler
    if assembler.runs_user_code or not adapter.seeds.has_times:
        return
    # Ranks of a node that share the caches begin at different batches, which may be those of all ranks.
    begin = len(plan) * world.current_rank() // world.current_size()
    for number in range(min(len(plan), _MOST_BATCHES)):
        if all(cache.has_enough_counts for cache in caches):
            return
        batch = (begin + number) % len(plan)
        with BatchContext(BatchKey(0, 0, batch), RankBatch(0, batch)), only_counting():
            made = assembler.make(torch.from_numpy(plan.few_indices(0, batch)))
            if not assembler.in_thread:
                assembler.complete(made)
