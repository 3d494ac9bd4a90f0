"""Makes batches of DGL's kind of samples and rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from manyhop.features import BufferPool, RowRequest, gather
from manyhop.loading import current_turn
from manyhop.loading.gpu.samples import empty_sample
from manyhop.loading.pipeline import Stats, Turn, current_exchange
from manyhop_dgl.edges.tensors import EdgeTensors
from manyhop_dgl.loader.columns import FrameColumns, PlacedFrames
from manyhop_dgl.loader.prefetched import sampler_of_nodes
from manyhop_dgl.loader.source import Source, on_cpu_only
from manyhop_dgl.loader.storages import Filled, moved
from manyhop_dgl.loader.tensors import TensorPrefetcher, rows_of
from manyhop_dgl.loader.view import LoaderView
from manyhop_dgl.samplers.cut import cut
from manyhop_dgl.samplers.tensors import BlockTensors

if TYPE_CHECKING:
    from manyhop.loading.gpu.runtime import GPURuntime


class Batches:
    """The ``Assembler`` of a loader: a batch is :class:`Filled` until it is handed out."""

    hands_out = True
    makes_alone = False
    transform = None

    def __init__(
        self, loader: LoaderView, source: Source, gpu: GPURuntime | None, stats: Stats, pool: BufferPool
    ) -> None:
        self._loader, self._source, self._gpu, self._stats, self._pool = loader, source, gpu, stats, pool
        self._columns = FrameColumns(loader)
        self.in_thread: bool = loader.use_prefetch_thread is not False
        """Whether data are gathered where samples are made."""

    @property
    def joins(self) -> bool:
        """Whether batches are made without DGL's objects, so that rows of several are gathered at once."""
        return isinstance(self._loader.prefetcher, TensorPrefetcher)

    @property
    def runs_user_code(self) -> bool:
        """Whether the host has a part in each batch: seed edges, a sampler for the CPU, functions of the user."""
        sampler = self._loader.graph_sampler
        nodes = sampler_of_nodes(sampler)
        return nodes is not sampler or on_cpu_only(nodes.arguments()) or self._loader.worker_init_fn.func is not None

    def make(self, positions: object) -> Any:
        """Call the sampler, and gather data if that is done in the thread."""
        batch = self._source.sample_at(positions)
        batch = batch if self._gpu is None else batch.to(self._loader.device)
        return self.complete(batch) if self.in_thread else batch

    def complete(self, sample: object) -> Filled:
        """Put the data that the sampler asks for into a batch."""
        if self._gpu is None:
            return self._fill(sample)
        (filled,), nbytes = self.join([sample], None)
        self._stats.count(gathered_bytes=nbytes)
        return filled

    def _fill(self, sample: object) -> Filled:
        """Put data into a batch on the CPU, and note how long that takes."""
        start = time.perf_counter()
        times: list[float] = []

        def gather_timed(requests: list[RowRequest]) -> list[Any]:
            times.append(time.perf_counter())
            rows = self._gather(requests)
            times.append(time.perf_counter())
            return rows

        (filled,), nbytes = self._loader.prefetcher.fill([sample], gather_timed)
        end = time.perf_counter()
        if (turn := current_turn()) is None:
            return filled
        if times:
            self._stats.record(turn.batch, "assemble", start, times[0])
            self._stats.record(turn.batch, "gather", times[0], times[1])
        self._stats.record(turn.batch, "assemble", times[1] if times else start, end)
        self._stats.count(gathered_bytes=nbytes)
        return filled

    def join(self, samples: Sequence[object], turns: Sequence[Turn] | None) -> tuple[list[Filled], int]:
        """Put data into several batches, by one gather."""
        gpu = self._gpu
        assert gpu is not None
        start = gpu.start_gather()
        filled, nbytes = self._loader.prefetcher.fill(samples, self._gather)
        gpu.end_gather(start, len(samples))
        for one in filled:
            one.is_watched = turns is not None
        return filled, nbytes

    def _gather(self, requests: list[RowRequest]) -> list[Any]:
        gpu = self._gpu
        if gpu is None:
            threads = torch.get_num_threads()
            return gather(requests, pool=self._pool, threads=threads, exchange=current_exchange())
        placed: PlacedFrames = gpu.columns(self._columns)
        placed.redirect(requests)
        return gpu.gather(requests)

    def count(self, samples: Sequence[object]) -> None:
        """Add seeds, nodes and edges to the statistics."""
        self._source.count(samples)

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
        return cut(empty_sample(topology.graph, device), dtype=topology.index_dtype)

    def hand_out(self, batch: Filled) -> object:
        """Return the batch with the data that the graph has now."""
        loader = self._loader
        if not batch.is_watched and (nbytes := loader.prefetcher.renew(batch, self._gather)):
            self._stats.count(gathered_bytes=nbytes)
        batch.finish()
        value, prefetcher = batch.batch, loader.prefetcher
        if loader.output == "blocks" and isinstance(prefetcher, TensorPrefetcher):
            value = prefetcher.as_graphs(value)
        else:
            value = prefetcher.settle(value)
        if self._gpu is not None or loader.device.type == "cpu":
            return value
        if isinstance(value, BlockTensors | EdgeTensors):
            return value.to(loader.device)
        return moved(value, loader.device)
