"""Batches as tensors: the data that a sampler requests, in blocks of plain tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import is_
from typing import Any, NamedTuple

import dgl
import torch
from dgl.dataloading import BlockSampler
from dgl.heterograph import DGLBlock
from torch import Tensor

from manyhop.errors import InputError
from manyhop.features import DistributedRows, ShardedRows
from manyhop.loading.pipeline import PaddedRows, clear_rows
from manyhop.system.arrays import version_of
from manyhop_dgl.graph.graph import Graph
from manyhop_dgl.samplers.blocks import TypeFrames, each_of, lazy_frames, make_blocks, put_rows
from manyhop_dgl.samplers.edges import EdgePredictionSampler, graphs_of_pairs, index_of_pairs, sampler_of_nodes
from manyhop_dgl.samplers.features import (
    Data,
    Filled,
    Requested,
    check_complete,
    find_data,
    request_rows,
    value_of,
)
from manyhop_dgl.samplers.neighbor import EngineSampler
from manyhop_dgl.samplers.tensors import BlockTensors, EdgeTensors

Batch = BlockTensors | EdgeTensors
_METHODS = ("sample", "sample_tensors", "assign_lazy_features")


class _State(NamedTuple):
    """A key and the data found by it, in one object for multiple threads."""

    requested: object = None
    there: Any = None
    data: Data = Data([], [], True)


class Prefetched:
    """The data that a sampler prefetches from a graph. Both may change between batches.

    Args:
        graph: whose data they are.
        sampler: of nodes, or of edges with a sampler of nodes beneath.
    """

    def __init__(self, graph: Graph | dgl.DGLGraph, sampler: BlockSampler) -> None:
        self._graph, self._sampler, self._nodes = graph, sampler, sampler_of_nodes(sampler)
        self._of_dgl = isinstance(graph, dgl.DGLGraph)
        self._state = _State()

    def data(self) -> Data:
        """Return the requested data that exist: the same object until they change.

        Raises:
            FeatureError: unknown names, by type.
            InputError: types that the graph does not have.
        """
        requested, state = self._requested(), self._state
        if state.requested == requested and self._is_same(state):
            return state.data
        there = self.there()  # before the data found by it
        data, known = self.find(), state.data
        same = (data.entries, data.is_complete) == (known.entries, known.is_complete)
        if same and all(map(is_, data.values, known.values)):
            data = known  # only other data have changed
        self._state = _State(tuple(map(_copied, requested)), there, data)
        return data

    def find(self) -> Data:
        """Return what :meth:`data` does, without keeping it."""
        return find_data(self._graph, self._requested())

    def all_data(self) -> Data:
        """Return the requested data; raise FeatureError if some do not exist."""
        data = self.data()
        if not data.is_complete:
            check_complete(self._graph, self._requested(), data)
        return data

    def there(self) -> list[object]:
        """Return objects that change if data are added, removed or replaced, by type; of a ``DGLGraph``, only names."""
        graph: Any = self._graph
        if self._of_dgl:
            return [[*frame._columns] for frame in (*graph._node_frames, *graph._edge_frames)]
        return [frame.data for frame in (*graph.node_frames.values(), *graph.edge_frames.values())]

    def _is_same(self, state: _State) -> bool:
        there, data = self.there(), state.data
        if not self._of_dgl:
            return len(there) == len(state.there) and all(map(is_, there, state.there))
        values = [value_of(self._graph, entry) for entry in data.entries]
        return there == state.there and all(map(is_, values, data.values))

    def _requested(self) -> Requested:
        nodes, sampler = self._nodes, self._sampler
        of_seeds = [] if nodes is sampler else sampler.prefetch_labels
        return nodes.prefetch_node_feats, nodes.prefetch_labels, nodes.prefetch_edge_feats, of_seeds


def _copied(names: Any) -> Any:
    """Return a copy, equal until the names change; they may be by type."""
    if isinstance(names, Mapping):
        return {kind: _copied(some) for kind, some in names.items()}
    if names is None or isinstance(names, tuple):
        return names
    return [*names] if isinstance(names, list) else tuple(names)


class TensorPrefetcher:
    """Adds the graph's current data to blocks of tensors.

    Args:
        graph: where the data are.
        prefetched: the requested data.
    """

    def __init__(self, graph: Graph | dgl.DGLGraph, prefetched: Prefetched) -> None:
        self._graph, self._prefetched = graph, prefetched
        self._frames: tuple[list[Any], TypeFrames] = [], ([], [])  # in one piece, as multiple threads read it

    def begin(self, batches: Sequence[Batch]) -> list[Filled]:
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

    def as_graphs(self, batch: Batch) -> tuple[Any, ...]:
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

    def settle(self, batch: Batch) -> Batch:
        """Return the batch without its padding."""
        tensors = batch.sample if isinstance(batch, EdgeTensors) else batch
        if tensors.padding is None:
            return batch
        tensors = replace(tensors, padding=None)
        return replace(batch, sample=tensors) if isinstance(batch, EdgeTensors) else tensors


def rows_of(batch: Batch) -> list[Tensor]:
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


def _without_rows(batch: Batch) -> Batch:
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


def samples_tensors(sampler: BlockSampler) -> bool:
    """Return whether a sampler can sample without DGL's objects: manyhop's, with unchanged methods."""
    nodes = sampler_of_nodes(sampler)
    return (
        isinstance(nodes, EngineSampler)
        and _is_as_it_was(nodes, EngineSampler, (*_METHODS, "sample_blocks"))
        and (nodes is sampler or _is_as_it_was(sampler, EdgePredictionSampler, _METHODS))
    )


def _is_as_it_was(sampler: object, own: type, methods: tuple[str, ...]) -> bool:
    return all(getattr(type(sampler), name) is getattr(own, name) and name not in vars(sampler) for name in methods)


def check_tensors(sampler: BlockSampler, name: str, value: str) -> None:
    """Raise InputError unless a sampler can sample without DGL's objects, which an argument of the loader needs."""
    if not samples_tensors(sampler):
        raise InputError(
            f"Expected one of manyhop_dgl's samplers, with its own methods, for {name}={value!r}, also beneath "
            f"as_edge_prediction_sampler, got a {type(sampler_of_nodes(sampler)).__name__}. Leave {name} out."
        )
    if sampler.output_device is not None:
        raise InputError(f"Got a sampler with output_device for {name}={value!r}. Pass device to the loader instead.")


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
