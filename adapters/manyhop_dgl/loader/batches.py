"""Makes batches of DGL's kind of samples and rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from manyhop.features import RowRequest
from manyhop.loading.gpu.samples import empty_sample
from manyhop.pipeline import Stats, Turn
from manyhop_dgl.edges.tensors import EdgeTensors
from manyhop_dgl.loader.columns import FrameColumns, PlacedFrames
from manyhop_dgl.loader.source import on_cpu_only
from manyhop_dgl.loader.storages import Filled
from manyhop_dgl.loader.tensors import TensorPrefetcher, sampler_of_nodes
from manyhop_dgl.loader.view import LoaderView
from manyhop_dgl.samplers.tensors import BlockTensors, cut

if TYPE_CHECKING:
    from manyhop.loading.gpu.runtime import GPURuntime


class Batches:
    """The ``Assembler`` of a loader: a batch is :class:`Filled` until it is handed out."""

    hands_out = True
    makes_alone = False
    transform = None

    def __init__(self, loader: LoaderView, gpu: GPURuntime | None, stats: Stats) -> None:
        self._loader, self._gpu, self._stats, self._columns = loader, gpu, stats, FrameColumns(loader)
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
        return nodes is not sampler or on_cpu_only(nodes) or self._loader.worker_init_fn.func is not None

    def make(self, positions: object) -> Any:
        """Call the sampler, and gather data if that is done in the thread."""
        loader = self._loader
        batch = loader.sample_at(positions)
        if self._gpu is None:
            return loader.fill(batch) if self.in_thread else batch
        batch = batch.to(loader.device)
        return self.complete(batch) if self.in_thread else batch

    def complete(self, sample: object) -> Filled:
        """Put the data that the sampler asks for into a batch."""
        loader = self._loader
        if self._gpu is None:
            return loader.fill(sample)
        (filled,), nbytes = self.join([sample], None)
        self._stats.count(gathered_bytes=nbytes)
        return filled

    def join(self, samples: Sequence[object], turns: Sequence[Turn] | None) -> tuple[list[Filled], int]:
        """Put data into several batches, by one gather."""
        gpu = self._gpu
        assert gpu is not None
        start = gpu.start_gather()
        filled, nbytes = self._loader.prefetcher.fill(samples, self._gather)
        gpu.end_gather(start, len(samples))
        return filled, nbytes

    def _gather(self, requests: list[RowRequest]) -> list[Any]:
        gpu = self._gpu
        if gpu is None:
            return self._loader.gather_rows(requests)
        placed: PlacedFrames = gpu.columns(self._columns)
        return gpu.gather([placed.request(request) for request in requests])

    def count(self, samples: Sequence[object]) -> None:
        """Add seeds, nodes and edges to the statistics."""
        for sample in samples:
            self._loader.count_batch(sample)

    def values(self, batch: Filled) -> list[list[Tensor]]:
        """Return all tensors of a batch."""
        parts = batch.batch
        tensors: BlockTensors = parts.tensors
        found = [*tensors.node.values(), *parts.rows()]
        for block in tensors.blocks:
            for by_type in (block.columns, block.sources, block.ids, block.weights or {}, block.masks or {}):
                found += by_type.values()
        if tensors.masks is not None:
            found += tensors.masks.values()
        if tensors.padding is not None and tensors.padding.jobs is not None:
            found.append(tensors.padding.jobs.table)  # which is read again where rows are gathered again
        if isinstance(parts.batch, EdgeTensors):
            for masks in (parts.batch.masks or {}, parts.batch.negative_masks or {}):
                found += masks.values()
            found += parts.batch.ids.values()
            for ends in (parts.batch.ends, parts.batch.negative_ends or {}):
                found += [ids for pair in ends.values() for ids in pair]
        return [found]

    def empty(self, device: torch.device) -> BlockTensors:
        """Return a sample without nodes and edges."""
        topology = sampler_of_nodes(self._loader.graph_sampler).arguments().topology(self._loader.graph)
        return cut(empty_sample(topology.graph, device), dtype=topology.index_dtype)

    def hand_out(self, batch: Filled) -> object:
        """Return the batch with the data that the graph has now."""
        value, nbytes = self._loader.prefetcher.finish(batch, self._gather)
        self._stats.count(gathered_bytes=nbytes)
        return self._loader.handed_out(value)
