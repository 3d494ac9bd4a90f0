"""Build DGL's batches of samples and rows, with the graph's current data."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any

import dgl
import torch
from dgl.heterograph import DGLBlock
from torch import Tensor

from manyhop.features import BufferPool, DistributedRows, RowRequest, ShardedRows, gather
from manyhop.loading import current_batch, current_exchange
from manyhop.loading.gpu.samples import empty_sample
from manyhop.loading.pipeline import PaddedRows, RankBatch, Stats, clear_rows
from manyhop.system.arrays import version_of
from manyhop_dgl.graph.graph import Graph
from manyhop_dgl.loader.source import LoaderView, Sample, Source, on_cpu_only
from manyhop_dgl.loader.storages import Prefetcher, contents_of, moved
from manyhop_dgl.samplers.blocks import TypeFrames, each_of, lazy_frames, make_blocks, put_rows
from manyhop_dgl.samplers.edges import graphs_of_pairs, index_of_pairs, sampler_of_nodes
from manyhop_dgl.samplers.features import Data, Filled, Gather, Prefetched, add_rows, request_rows
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


class TensorPrefetcher:
    """Adds the graph's current data to blocks of tensors.

    Args:
        graph: where the data are.
        prefetched: the requested data.
    """

    def __init__(self, graph: Graph | dgl.DGLGraph, prefetched: Prefetched) -> None:
        self._graph, self._prefetched = graph, prefetched
        self._frames: tuple[list[Any], TypeFrames] = [], ([], [])  # in one piece, as multiple threads read it

    def begin(self, batches: Sequence[Sample]) -> list[Filled]:
        """Request rows of the data for copies of batches."""
        source = self._source()
        filled = [Filled(_without_rows(batch), source) for batch in batches]
        for one in filled:
            request_rows(one, source[0])
        return filled

    def renew(self, filled: Filled) -> bool:
        """Request rows again if data were replaced or written to; return whether. Rows of other nodes are kept."""
        data, versions = source = self._source()
        if versions == filled.source[1] and _same_data(data, filled.source[0]):
            return False
        filled.batch, filled.source = _without_rows(filled.batch), source
        request_rows(filled, data)
        return True

    def _source(self) -> tuple[Data, list[int]]:
        data = self._prefetched.all_data()
        return data, [version_of(value) for value in data.values]

    def as_graphs(self, batch: Sample) -> tuple[Any, ...]:
        """Convert a complete batch to DGL's objects, with its data. Other data are rows of the graph's data.

        Returns:
            Input nodes, output nodes and blocks; around seed edges input nodes, their graph, that of negatives, blocks.
        """
        tensors = batch.sample if isinstance(batch, EdgeTensors) else batch
        frames = None if tensors.masks is not None else self._all_frames()  # padding has no rows
        blocks = make_blocks(tensors, frames, self._graph.canonical_etypes)
        if isinstance(batch, EdgeTensors):
            return _with_pairs(batch, blocks, frames)
        return tensors.input_nodes if blocks else tensors.output_nodes, tensors.output_nodes, blocks

    def _all_frames(self) -> TypeFrames:
        """Return DGL's current frames of all data of the graph."""
        graph = self._graph
        if isinstance(graph, dgl.DGLGraph):
            return lazy_frames(graph)
        there = self._prefetched.there()
        known, frames = self._frames
        if len(known) != len(there) or not all(map(is_, known, there)):
            frames = lazy_frames(graph)
            self._frames = there, frames
        return frames

    def complete(self, batches: Sequence[Filled]) -> None:
        """Let the rows of padding be zeros."""
        rows: list[PaddedRows] = []
        of_seeds: list[Tensor] = []
        for batch in [filled.batch for filled in batches]:
            tensors = batch.sample if isinstance(batch, EdgeTensors) else batch
            padded = tensors.padding
            if padded is None:
                continue
            types, edge_types = self._graph.ntypes, self._graph.canonical_etypes
            own = dict(zip(edge_types, padded.sizes.edges, strict=True))  # as the sampler has them
            rows += [PaddedRows(value, padded, t) for _, t, value in each_of(tensors.node_features, types)]
            rows += [PaddedRows(value, padded, t, block=0) for _, t, value in each_of(tensors.output_features, types)]
            for hop, of_edges in enumerate(reversed(tensors.edge_features)):
                rows += [PaddedRows(value, padded, own[t], block=hop) for _, t, value in each_of(of_edges, edge_types)]
            if isinstance(batch, EdgeTensors) and batch.num_edges is not None:
                of_seeds += [value[batch.num_edges[t] :] for _, t, value in each_of(batch.edge_features, edge_types)]
        if rows:
            clear_rows(rows)
        if of_seeds:
            torch._foreach_zero_(of_seeds)

    def settle(self, batch: Sample) -> Sample:
        """Return the batch without its padding."""
        tensors = batch.sample if isinstance(batch, EdgeTensors) else batch
        if tensors.padding is None:
            return batch
        tensors = replace(tensors, padding=None)
        return replace(batch, sample=tensors) if isinstance(batch, EdgeTensors) else tensors


def rows_of(batch: Sample) -> list[Tensor]:
    """Return all rows that have been gathered for a batch."""
    tensors = batch.sample if isinstance(batch, EdgeTensors) else batch
    parts: list[Mapping[str, Any]] = [tensors.node_features, tensors.output_features, *tensors.edge_features]
    if isinstance(batch, EdgeTensors):
        parts.append(batch.edge_features)
    found: list[Tensor] = []
    for rows in parts:
        for value in rows.values():
            if isinstance(value, Tensor):
                found.append(value)
            else:
                found += value.values()
    return found


def _without_rows(batch: Sample) -> Sample:
    tensors = batch.sample if isinstance(batch, EdgeTensors) else batch
    made = replace(tensors, node_features={}, output_features={}, edge_features=[])
    return replace(batch, sample=made, edge_features={}) if isinstance(batch, EdgeTensors) else made


def _same_data(data: Data, before: Data) -> bool:
    """Return whether rows have the same sources; rows of other nodes always do."""
    if data is before:
        return True
    return data.entries == before.entries and all(
        a is b or isinstance(b, ShardedRows | DistributedRows) for a, b in zip(data.values, before.values, strict=True)
    )


def _with_pairs(batch: EdgeTensors, blocks: list[DGLBlock], frames: TypeFrames | None) -> tuple[object, ...]:
    """Return seed edges and negatives of a complete batch in DGL's objects, with its blocks."""
    sample = batch.sample
    nodes = {t: sample.node[t][:n] for t, n in sample.num_seeds.items()}
    num_nodes = list(sample.num_seeds.values())
    given = [batch.ends] if batch.negative_ends is None else [batch.ends, batch.negative_ends]
    indices = [index_of_pairs(list(nodes), list(batch.ids), num_nodes, pairs) for pairs in given]
    graphs = graphs_of_pairs(nodes, batch.ids, indices, frames, sample.masks, (batch.masks, batch.negative_masks))
    put_rows(graphs[0]._edge_frames, list(batch.ends), batch.edge_features)
    return sample.input_nodes, *graphs, blocks


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
        (indices,) = self._source.inputs([positions])
        start = time.perf_counter()
        batch = self._source.sample_around(indices)
        if (rank_batch := current_batch()) is not None:
            self._stats.record(rank_batch.batch, "sample", start, time.perf_counter())
            rank_batch.contents.update(self.contents(batch) if self.gathers_groups else contents_of(batch, indices))
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

    def contents(self, sample: Sample) -> dict[str, int]:
        """Return the numbers of seeds, nodes and edges without padding, and whether the padding fits."""
        tensors = sample.sample if isinstance(sample, EdgeTensors) else sample
        if tensors.padding is None:
            hops = tensors.hops
            edges = sum([sum(of_hops) for of_hops in hops.num_edges.values()])
            nodes, seeds = sum(hops.num_nodes[-1].values()), sum(hops.num_nodes[0].values())
            found = {"seeds": seeds, "nodes": nodes, "edges": edges}
        else:
            counts, fits = tensors.padding.counts, int(tensors.padding.grown == 0)
            nodes, edges = (sum(map(sum, by_type.values())) for by_type in (counts.nodes, counts.edges))
            seeds = sum(hops[0] for hops in counts.nodes.values())
            found = {"seeds": seeds, "nodes": nodes, "edges": edges, "padded": 1, "fit": fits}
        if isinstance(sample, EdgeTensors):
            real = sample.num_edges
            found["seeds"] = sum([ids.numel() for ids in sample.ids.values()] if real is None else real.values())
        return found

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
