"""Statistics and timelines of a loader; caches of files, filled before the first epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Literal

import torch

from manyhop.features import FileCache, file_cache, only_counting
from manyhop.features import cached_files as hot_files
from manyhop.loading.adapter import Adapter
from manyhop.loading.keys import first_batches
from manyhop.loading.pipeline import BatchPlan, Stats, StatsReport, save_timeline
from manyhop.memory.placement import GPUPlacement
from manyhop.ranks import world
from manyhop.system.arrays import row_layout

_WORTH_IT = 0.15  # share of a batch's time
_LINE = 64  # bytes of a cache line


class Figures:
    """The part of a loader that reports statistics."""

    _gpu: Any = None
    _stats: Stats

    def _adapter(self) -> Adapter[Any, Any]:
        """Return new objects of the adapter, which the loader does not hold."""
        raise NotImplementedError

    def _sources(self) -> list[Any]:
        """Return the tensors that rows are gathered from."""
        return [value for _, value in self._adapter().columns.named()]

    def _file_caches(self) -> list[tuple[Any, FileCache]]:
        """Return the tensors in files that rows are gathered from, with their caches."""
        every = [(value, file_cache(value)) for value in self._sources()]
        return [(value, cache) for value, cache in every if cache is not None]

    def _device(self) -> torch.device:
        """Return the device that makes the batches."""
        return torch.device("cpu") if self._gpu is None else self._gpu.device

    @property
    def placement(self) -> GPUPlacement | str:
        """Placement of topology and features on a GPU, with reasons; otherwise a text that names the device."""
        in_place = f"{self._device()}: topology and features are read in place"
        placement: GPUPlacement | str = in_place if self._gpu is None else self._gpu.memory.placement
        return placement

    def stats(self, since: StatsReport | Literal["epoch"] | None = None) -> StatsReport:
        """Return speed, times of stages, and advice; ``print`` shows a table.

        Args:
            since: ``"epoch"``, the beginning of the latest epoch, or an earlier report of this loader; ``None``: the
                loader's creation.

        Raises:
            InputError: ``since`` is not one of these.
        """
        if self._gpu is not None:
            self._gpu.streams.take_times()
        self._count_cached_rows()
        kept = hot_files.in_words(cache for _, cache in self._file_caches())
        parts = ["" if self._gpu is None else self._gpu.memory.placement.summary(), kept]
        report = self._stats.report(since)
        reads_rows = self._gpu is None and bool(self._sources())  # loaders of walks do not
        advice = _with_advice_on_edges(report, self._adapter()) if reads_rows else report.advice
        return replace(report, advice=advice, placement="; ".join(filter(None, parts)))

    def _count_cached_rows(self) -> None:
        """Add the rows that caches of a GPU were asked for since the last call; CPUs count them with each batch."""
        if self._gpu is None:
            return
        requested, hits = self._gpu.memory.take_cache_counts()
        for value, cache in self._file_caches():
            asked, found = cache.take_counts()
            hits += found
            if not self._gpu.memory.caches(value):  # else its requests are misses of the GPU's cache
                requested += asked
        self._stats.count(other_rows=requested, cached_rows=hits)

    def timeline(self, path: str | PathLike[str]) -> None:
        """Save a picture of the latest batches of this rank: ``.svg``, ``.png`` or ``.json`` (for ui.perfetto.dev).

        ``manyhop timeline FILES -o OUT`` merges the ``.json`` files of all ranks.
        """
        if self._gpu is not None:
            self._gpu.streams.take_times()
        save_timeline(self._stats, path)


def warm_up_caches(adapter: Adapter[Any, Any], plan: BatchPlan, caches: Sequence[FileCache]) -> None:
    """Make and drop batches of epoch 0 until caches have counted enough reads. Runs no user code."""
    assembler = adapter.assembler
    if assembler.runs_user_code or not adapter.seeds.has_times:
        return
    # Ranks of a node that share the caches begin at different batches, maybe of all ranks.
    begin = len(plan) * world.current_rank() // world.current_size()
    for positions in first_batches(plan, begin, received=True):
        if all(cache.has_enough_counts for cache in caches):
            return
        with only_counting():
            made = assembler.collate(positions)
            if not assembler.in_thread:
                assembler.assemble(made)


def _with_advice_on_edges(report: StatsReport, adapter: Adapter[Any, Any]) -> str:
    """Return a report's advice, which names attributes of unsorted edges if they cost much."""
    share = _share_of_unsorted_edges(report, adapter)
    if share <= _WORTH_IT or report.waited_s <= report.first_wait_s:
        return report.advice
    return (
        "sort the edges by destination, as data.sort(sort_by_row=False) does: reading their attributes in random order "
        f"takes about {share:.0%} of making a batch; {report.advice}"
    )


def _share_of_unsorted_edges(report: StatsReport, adapter: Adapter[Any, Any]) -> float:
    """Return the share of time spent on reading attributes of unsorted edges, estimated by the cache lines of rows."""
    graph, made = adapter.seeds.graph, report.sample_s + report.gather_s + report.assemble_s
    if graph is None or made == 0:
        return 0.0
    num_nodes, num_edges = sum(graph.num_nodes.values()), sum(csc.num_edges for csc in graph.csc.values())
    unsorted = {csc.num_edges for csc in graph.csc.values() if csc.perm is not None} - set(graph.num_nodes.values())
    of_edges = of_others = 0.0
    for name, value in adapter.columns.named():
        layout = row_layout(value, name)
        if layout is None:
            continue
        lines = -(-layout.row_bytes // _LINE)
        if layout.num_rows in unsorted:
            of_edges += report.edges * lines * layout.num_rows / num_edges
        else:
            of_others += report.nodes * lines * layout.num_rows / num_nodes
    return report.gather_s / made * of_edges / (of_edges + of_others) if of_edges else 0.0
