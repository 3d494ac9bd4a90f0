"""Build DGL's batches of samples and rows, with the graph's current data."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from manyhop.features import BufferPool, RowRequest, gather
from manyhop.loading import current_batch, current_exchange
from manyhop.loading.gpu.samples import empty_sample
from manyhop.loading.pipeline import RankBatch, Stats
from manyhop_dgl.loader.source import LoaderView, Source, on_cpu_only
from manyhop_dgl.loader.storages import Prefetcher, moved
from manyhop_dgl.loader.tensors import Prefetched, TensorPrefetcher, rows_of
from manyhop_dgl.samplers.edges import sampler_of_nodes
from manyhop_dgl.samplers.features import Data, Filled, Gather, add_rows
from manyhop_dgl.samplers.plan import cut_all
from manyhop_dgl.samplers.tensors import BlockTensors, EdgeTensors
from manyhop_embedding import Embedding

if TYPE_CHECKING:
    from manyhop.loading.gpu.runtime import GPURuntime


class PlacedFrames:
    """Data of a graph, each where a GPU reads it.

    Args:
        data: as the graph has them.
        sources: ``[num_entries]``: the source of each of them for the GPU.
    """

    def __init__(self, data: Data, sources: list[object]) -> None:
        self.data, self.sources = data, sources
        self._there = {id(value): source for value, source in zip(data.values, sources, strict=True)}

    def redirect(self, requests: Sequence[RowRequest]) -> None:
        """Return requests with the sources for the GPU; unchanged for data that were added later."""
        there = self._there
        for request in requests:
            request.source = there.get(id(request.source), request.source)

    def shared_objects(self) -> frozenset[int]:
        """Return nothing: batches share no object with a graph."""
        return frozenset()


class FrameColumns:
    """The ``Columns`` of a loader."""

    complete = True

    def __init__(self, prefetched: Prefetched, gpu_cache: Mapping[str, Mapping[str, int]] | None) -> None:
        self._prefetched, self._gpu_cache = prefetched, gpu_cache

    def named(self) -> list[tuple[str, object]]:
        """Return title and value of the data that are wanted and there, without embeddings, which change."""
        return list(_by_title(self._prefetched.find()).items())

    @property
    def kept_rows(self) -> Mapping[str, int] | None:
        """The number of rows of each data that the GPU caches; ``None``: by its memory."""
        if self._gpu_cache is None:
            return None
        kept = {}
        for entry in self._prefetched.find().entries:
            by_name = self._gpu_cache.get("node" if entry.part in ("nodes", "outputs") else "edge", {})
            kept[entry.title] = by_name.get(entry.name, 0)
        return {title: rows for title, rows in kept.items() if rows > 0}

    def place(self, source: Callable[[str, object], object], device: torch.device) -> PlacedFrames:
        """Return the data that the graph has now."""
        data = self._prefetched.data()
        there = {title: source(title, value) for title, value in _by_title(data).items()}
        values = zip(data.entries, data.values, strict=True)
        return PlacedFrames(data, [there.get(entry.title, value) for entry, value in values])

    def fits(self, placed: PlacedFrames) -> bool:
        """Return whether no data were replaced, added or removed since. Called for each batch."""
        return self._prefetched.data() is placed.data


def _by_title(data: Data) -> dict[str, object]:
    """Return title and value, without embeddings."""
    both = zip(data.entries, data.values, strict=True)
    return {entry.title: value for entry, value in both if not isinstance(value, Embedding)}


class Batches:
    """The ``Assembler`` of a loader: a batch is :class:`Filled` until it is returned."""

    hands_out = True
    samples_alone = False
    transform = None

    def __init__(
        self,
        loader: LoaderView,
        source: Source,
        columns: FrameColumns,
        prefetcher: Prefetcher | TensorPrefetcher,
        gpu: GPURuntime | None,
        stats: Stats,
        pool: BufferPool,
    ) -> None:
        self._loader, self._source, self._columns, self._prefetcher = loader, source, columns, prefetcher
        self._gpu, self._stats, self._pool = gpu, stats, pool
        self.in_thread: bool = loader.use_prefetch_thread is not False
        """Whether data are gathered on the device that samples."""

    @property
    def gathers_groups(self) -> bool:
        """Whether batches contain no objects of DGL, so that rows of multiple batches are gathered at once."""
        return isinstance(self._prefetcher, TensorPrefetcher)

    @property
    def runs_user_code(self) -> bool:
        """Whether the host has a part in each batch: seed edges, a sampler for the CPU, functions of the user."""
        sampler = self._loader.graph_sampler
        nodes = sampler_of_nodes(sampler)
        return nodes is not sampler or on_cpu_only(nodes.arguments()) or self._loader.worker_init_fn.func is not None

    def collate(self, positions: object) -> Any:
        """Call the sampler, and gather data if that is done in the thread."""
        batch = self._source.sample(positions)
        batch = batch if self._gpu is None else batch.to(self._loader.device)
        return self.assemble(batch) if self.in_thread else batch

    def assemble(self, sample: Any) -> Filled:
        """Add the data that the sampler requests to a batch."""
        rank_batch = current_batch()
        if self._gpu is not None:
            filled, nbytes = self.assemble_group([sample], None)
        else:
            start = time.perf_counter()
            filled = self._prefetcher.begin([sample])
            begin = time.perf_counter()
            nbytes = self._add_rows(filled)
            if rank_batch is not None:
                self._stats.record(rank_batch.batch, "assemble", start, begin)
                self._stats.record(rank_batch.batch, "gather", begin, time.perf_counter())
        if rank_batch is not None:
            rank_batch.contents["gathered_bytes"] = nbytes
        return filled[0]

    def assemble_group(
        self, samples: Sequence[Any], rank_batches: Sequence[RankBatch] | None
    ) -> tuple[list[Filled], int]:
        """Add data to multiple batches, by one gather."""
        gpu = self._gpu
        assert gpu is not None
        start = gpu.start_gather()
        filled = self._prefetcher.begin(samples)
        nbytes = self._add_rows(filled)
        gpu.end_gather(start, len(samples))
        for one in filled:
            one.is_watched = rank_batches is not None
        return filled, nbytes

    def _add_rows(self, filled: list[Filled]) -> int:
        """Gather the requested rows; return their bytes."""
        gpu = self._gpu
        gather_rows: Gather
        if gpu is None:
            gather_rows = partial(gather, pool=self._pool, threads=torch.get_num_threads(), exchange=current_exchange())
        else:
            placed: PlacedFrames = gpu.columns(self._columns)
            for one in filled:
                placed.redirect(one.requests)
            gather_rows = gpu.gather
        nbytes = add_rows(filled, gather_rows)
        self._prefetcher.complete(filled)
        return nbytes

    def contents(self, sample: BlockTensors | EdgeTensors) -> dict[str, int]:
        """Return how many seeds, nodes and edges are in a sample."""
        return sample.contents()

    def values(self, batch: Filled) -> list[list[Tensor]]:
        """Return all tensors of a batch."""
        value: BlockTensors | EdgeTensors = batch.batch
        tensors = value.sample if isinstance(value, EdgeTensors) else value
        found = [*tensors.node.values(), *tensors.hops.tensors(), *rows_of(value)]
        if tensors.masks is not None:
            found += tensors.masks.values()
        if tensors.padding is not None and tensors.padding.jobs is not None:
            found.append(tensors.padding.jobs.table)  # which is read again where rows are gathered again
        if isinstance(value, EdgeTensors):
            for masks in (value.masks or {}, value.negative_masks or {}):
                found += masks.values()
            found += value.ids.values()
            for ends in (value.ends, value.negative_ends or {}):
                found += [ids for pair in ends.values() for ids in pair]
        found += [one for _, ahead in batch.ahead for one in ahead.tensors()]
        return [found]

    def empty(self, device: torch.device) -> BlockTensors:
        """Return a sample without nodes and edges."""
        topology = sampler_of_nodes(self._loader.graph_sampler).arguments().topology(self._loader.graph)
        return cut_all([empty_sample(topology.graph, device)], dtype=topology.index_dtype)[0]

    def hand_out(self, batch: Filled) -> object:
        """Return the batch with the data that the graph has now."""
        loader = self._loader
        if not batch.is_watched and self._prefetcher.renew(batch):
            self._stats.count(gathered_bytes=self._add_rows([batch]))
        batch.finish()
        value, prefetcher = batch.batch, self._prefetcher
        if loader.output == "blocks" and isinstance(prefetcher, TensorPrefetcher):
            value = prefetcher.as_graphs(value)
        else:
            value = prefetcher.settle(value)
        if self._gpu is not None or loader.device.type == "cpu":
            return value
        if isinstance(value, BlockTensors | EdgeTensors):
            return value.to(loader.device)
        return moved(value, loader.device)
