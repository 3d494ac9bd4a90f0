"""Build DGL's batches of samples and rows, with the graph's current data."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any

import dgl
import torch
from dgl.frame import LazyFeature
from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.features import BufferPool, DistributedRows, ShardedRows, gather
from manyhop.loading import current_batch, current_exchange
from manyhop.loading.gpu.samples import empty_sample
from manyhop.loading.pipeline import RankBatch, Stats
from manyhop.system.arrays import version_of
from manyhop_dgl.graph.graph import Graph
from manyhop_dgl.graph.topology import of_type, type_of
from manyhop_dgl.loader.columns import FrameColumns, PlacedFrames
from manyhop_dgl.loader.padding import clear_padding
from manyhop_dgl.loader.source import LoaderView, Source, on_cpu_only
from manyhop_dgl.samplers.blocks import TypeFrames, lazy_frames, make_blocks
from manyhop_dgl.samplers.edges import sampler_of_nodes, with_pairs
from manyhop_dgl.samplers.features import (
    Assign,
    Data,
    Entry,
    Filled,
    Gather,
    MissingDataError,
    Part,
    Prefetched,
    add_rows,
    request_rows,
    same_data,
    tensors_of,
    value_of,
    without_rows,
)
from manyhop_dgl.samplers.plan import cut_all
from manyhop_dgl.samplers.tensors import BlockTensors, EdgeTensors, Sample, all_in_nested, apply_nested

if TYPE_CHECKING:
    from manyhop.loading.gpu.runtime import GPURuntime


@dataclass(slots=True)
class Wanted:
    """Data of a batch, to be gathered."""

    entry: Entry
    ids: Tensor
    assign: Assign

    source: Any = None
    """The sources that were read."""

    version: int = 0
    """The version of that: writing to a tensor in place counts it up."""


class Prefetcher:
    """Replaces the lazy features in graphs of batches by the data that a graph has at that moment.

    Args:
        graph: where the data are.
    """

    def __init__(self, graph: Graph | dgl.DGLGraph) -> None:
        self._graph = graph
        self._types: dict[Part, list[Any]] = {"nodes": list(graph.ntypes), "edges": list(graph.canonical_etypes)}

    def begin(self, batches: Sequence[object]) -> list[Filled]:
        """Request rows of data for batches.

        If the graph lacks data, batches remain unchanged: the data may exist when the batches are returned.
        """
        filled = [Filled(batch, self._wanted(batch)) for batch in batches]
        with contextlib.suppress(MissingDataError):
            for one in filled:
                self._request(one)
        return filled

    def renew(self, filled: Filled) -> bool:
        """Request rows again if a source was replaced or written to; return whether. Rows of other nodes are kept."""
        if filled.is_complete and all(map(self._is_current, filled.source)):
            return False
        self._request(filled)
        return True

    def _is_current(self, one: Wanted) -> bool:
        if isinstance(one.source, ShardedRows | DistributedRows):
            return True
        source = self._source(one.entry)
        return source is one.source and version_of(source) == one.version

    def _request(self, filled: Filled) -> None:
        filled.clear()
        for one in filled.source:
            one.source = self._source(one.entry)
            one.version = version_of(one.source)
        for one in filled.source:
            filled.request(one.entry, one.source, one.ids, one.assign)
        filled.is_complete = True

    def _source(self, entry: Entry) -> Any:
        """Return the current source of rows of some data."""
        found = value_of(self._graph, entry)
        if found is None:
            raise MissingDataError(
                f"Expected the graph to have data {entry.title}, which the sampler prefetches, but it has none. Set it "
                "before iterating, or leave it out of the sampler's prefetch_* arguments."
            )
        return found

    def complete(self, batches: Sequence[Filled]) -> None:
        """Do nothing: no batch is padded."""

    def settle(self, batch: object) -> object:
        """Return the complete batch."""
        return batch

    def _wanted(self, batch: object) -> list[Wanted]:
        """Return the requests of a batch.

        Raises:
            FeatureError: lazy features outside of graphs, or without ids.
        """
        if outside := all_in_nested(LazyFeature, batch):
            raise FeatureError(
                f"Expected lazy features in graphs only, got {outside[0].name!r} outside of them. Gather its rows in "
                "the training loop."
            )
        return [one for g in all_in_nested(dgl.DGLGraph, batch) for one in self._of_graph(g)]

    def _of_graph(self, g: dgl.DGLGraph) -> list[Wanted]:
        wanted: list[Wanted] = []
        sides: list[tuple[Part, str, Any, Any, str]] = [
            ("nodes", "node", g._node_frames, g.ntypes, dgl.NID),
            ("edges", "edge", g._edge_frames, g.canonical_etypes, dgl.EID),
        ]
        for part, what, frames, kinds, id_name in sides:
            known = self._types[part]
            for frame, kind in zip(frames, kinds, strict=True):
                for key, column in list(frame._columns.items()):
                    if not isinstance(column, LazyFeature):
                        continue
                    name, index = column.name or key, column.id_
                    if index is None and id_name not in frame:
                        raise FeatureError(
                            f"Expected ids for the lazy feature {key!r}{of_type(kind)}, got none: the sampled graph "
                            f"has no data {id_name!r}. Keep them, or pass LazyFeature(name, ids)."
                        )
                    at = known.index(type_of(kind, known, what, "the graph"))
                    entry = Entry(part, name, kind, at, f"{name!r}{of_type(kind)}")
                    index = frame[id_name] if index is None else index
                    wanted.append(Wanted(entry, index, partial(frame.__setitem__, key)))
        return wanted


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
        filled = [Filled(without_rows(batch), source) for batch in batches]
        for one in filled:
            request_rows(one, source[0])
        return filled

    def renew(self, filled: Filled) -> bool:
        """Request rows again if data were replaced or written to; return whether. Rows of other nodes are kept."""
        data, versions = source = self._source()
        if versions == filled.source[1] and same_data(data, filled.source[0]):
            return False
        filled.batch, filled.source = without_rows(filled.batch), source
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
            return with_pairs(batch, blocks, frames)
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
        padded = []
        for batch in [filled.batch for filled in batches]:
            tensors = batch.sample if isinstance(batch, EdgeTensors) else batch
            if tensors.padding is not None:
                padded.append(batch)
        if padded:
            clear_padding(padded, self._graph)

    def settle(self, batch: Sample) -> Sample:
        """Return the batch without its padding."""
        tensors = batch.sample if isinstance(batch, EdgeTensors) else batch
        if tensors.padding is None:
            return batch
        tensors = replace(tensors, padding=None)
        return replace(batch, sample=tensors) if isinstance(batch, EdgeTensors) else tensors


def moved(batch: object, device: torch.device) -> object:
    """Return the batch with its graphs and tensors on a device."""

    def move(part: object) -> object:
        return part.to(device, non_blocking=True) if isinstance(part, dgl.DGLGraph | Tensor) else part

    return apply_nested(batch, move)


def contents_of(batch: object, indices: object) -> dict[str, int]:
    """Return seeds, nodes and edges of the result of a sampler for some indices."""
    blocks = batch[-1] if isinstance(batch, tuple) and batch and isinstance(batch[-1], list) else batch
    graphs = all_in_nested(dgl.DGLGraph, blocks)
    given = batch[0] if isinstance(batch, tuple) and batch and not all_in_nested(dgl.DGLGraph, batch[0]) else None
    return {
        "seeds": _total(indices),
        "nodes": sum(g.num_src_nodes() for g in graphs[:1]) if given is None else _total(given),
        "edges": sum(g.num_edges() for g in graphs),
    }


def _total(values: object) -> int:
    """Return entries of a tensor, or of all tensors in a dictionary; 0 for other objects."""
    if isinstance(values, Mapping):
        return sum(map(_total, values.values()))
    return values.shape[0] if isinstance(values, Tensor) else 0


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
        return [tensors_of(batch)]

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
