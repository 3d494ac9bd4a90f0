"""Batches as tensors (``output="tensors"``): the data that a sampler requests, in blocks of plain tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import is_
from typing import Any

import dgl
import torch
from dgl.dataloading import BlockSampler
from dgl.heterograph import DGLBlock
from torch import Tensor

from manyhop.errors import InputError
from manyhop.features import DistributedRows, RowRequest, ShardedRows
from manyhop.graph import EdgeType
from manyhop.loading.pipeline import PaddedRows, clear_rows
from manyhop.system.arrays import version_of
from manyhop_dgl.graph.graph import Graph
from manyhop_dgl.loader.prefetched import Data, Prefetched, sampler_of_nodes
from manyhop_dgl.loader.storages import Assign, Filled, Gather, bytes_of
from manyhop_dgl.samplers.blocks import (
    TypeFrames,
    each_of,
    lazy_frames,
    make_blocks,
    put_rows,
)
from manyhop_dgl.samplers.edges import EdgePredictionSampler, graphs_of_pairs, index_of_pairs
from manyhop_dgl.samplers.neighbor import EngineSampler
from manyhop_dgl.samplers.tensors import BlockTensors, EdgeTensors
from manyhop_embedding import Embedding

Batch = BlockTensors | EdgeTensors


class TensorPrefetcher:
    """Adds the graph's current data to blocks of tensors.

    Args:
        graph: where the data are.
        prefetched: the requested data.
    """

    def __init__(self, graph: Graph | dgl.DGLGraph, prefetched: Prefetched) -> None:
        self._graph, self._prefetched = graph, prefetched
        self._one_node_type, self._one_edge_type = len(graph.ntypes) == 1, len(graph.canonical_etypes) == 1
        self._frames: tuple[list[Any], TypeFrames] = [], ([], [])  # in one piece, as multiple threads read it

    def fill(self, batches: Sequence[Batch], gather: Gather) -> tuple[list[Filled], int]:
        """Add data to copies of batches."""
        data = self._prefetched.all_data()
        source = data, _versions(data)
        filled = [Filled(_without_rows(batch), source) for batch in batches]
        return filled, self._read(filled, data, gather)

    def renew(self, filled: Filled, gather: Gather) -> int:
        """Gather again if data were replaced or written to. Rows of other nodes belong to the exchange of the batch."""
        data = self._prefetched.all_data()
        source = data, _versions(data)
        if source[1] == filled.source[1] and _same_data(data, filled.source[0]):
            return 0
        filled.batch, filled.source = _without_rows(filled.batch), source
        return self._read([filled], data, gather)

    def _read(self, batches: Sequence[Filled], data: Data, gather: Gather) -> int:
        columns: list[Any] = [
            (*entry, source, isinstance(source, Embedding))
            for entry, source in zip(data.entries, data.values, strict=True)
        ]
        requests: list[RowRequest] = []
        places: list[tuple[dict[Any, Any], Any]] = []
        begun: list[tuple[RowRequest, Assign]] = []
        for filled in batches:
            batch: Batch = filled.batch
            filled.ahead.clear()
            tensors = batch.sample if isinstance(batch, EdgeTensors) else batch
            for part, name, kind, at, title, bound, source, is_trained in columns:
                of_one_type = self._one_node_type
                wanted: Sequence[tuple[Tensor, dict[str, Any]]]
                if part == "nodes":
                    wanted = ((tensors.node[kind], tensors.node_features),)
                elif part == "outputs":
                    wanted = ((tensors.node[kind][: tensors.num_seeds[kind]], tensors.output_features),)
                else:
                    of_one_type = self._one_edge_type
                    wanted = _of_edges(batch, at) if part == "edges" else _of_seeds(batch, kind)
                for index, rows in wanted:
                    place: Any = (rows, name) if of_one_type else (rows.setdefault(name, {}), kind)
                    if is_trained:
                        if tensors.padding is not None:
                            raise InputError(
                                f"Expected no embedding to be prefetched with pad='auto', got {title}: padding nodes "
                                "have no rows. Remove it from the sampler's prefetch_node_feats, and call it with "
                                "input_nodes."
                            )
                        into, key = place
                        one = filled.begin(source, index, partial(into.__setitem__, key))
                        begun += [] if one is None else [one]
                        continue
                    requests.append(RowRequest(source, index, 0, title, bound))
                    places.append(place)
        values = gather([*requests, *[request for request, _ in begun]])
        for (into, key), value in zip(places, values, strict=False):
            into[key] = value
        if begun:
            for (_, assign), value in zip(begun, values[len(places) :], strict=True):
                assign(value)
        self._clear([filled.batch for filled in batches])
        return bytes_of(values)

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

    def _clear(self, batches: Sequence[Batch]) -> None:
        """Let the rows of padding be zeros."""
        rows: list[PaddedRows] = []
        of_seeds: list[Tensor] = []
        for batch in batches:
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


def _of_edges(batch: Batch, at: int) -> list[tuple[Tensor, dict[str, Any]]]:
    """Return, for each block, its edges of the graph's edge type number ``at``, and the dictionary for their rows."""
    tensors = batch.sample if isinstance(batch, EdgeTensors) else batch
    if not tensors.edge_features:
        tensors.edge_features.extend({} for _ in tensors.blocks)
    ids = [[*block.ids.values()][at] for block in tensors.blocks]
    rows: list[dict[str, Any]] = [*tensors.edge_features]
    return list(zip(ids, rows, strict=True))


def _of_seeds(batch: Batch, kind: EdgeType) -> list[tuple[Tensor, dict[str, Any]]]:
    assert isinstance(batch, EdgeTensors)
    return [(batch.ids[kind], batch.edge_features)]


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


def _versions(data: Data) -> list[int]:
    """Return the tensors whose changes require a batch to be filled again."""
    return [version_of(value) for value in data.values]


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
        and _is_as_it_was(nodes, EngineSampler, ("sample", "sample_blocks", "assign_lazy_features"))
        and (nodes is sampler or _is_as_it_was(sampler, EdgePredictionSampler, ("sample", "assign_lazy_features")))
    )


def _is_as_it_was(sampler: object, own: type, methods: tuple[str, ...]) -> bool:
    return all(getattr(type(sampler), name) is getattr(own, name) and name not in vars(sampler) for name in methods)


def check_tensors(sampler: BlockSampler) -> None:
    """Raise InputError unless a sampler can sample without DGL's objects."""
    if not samples_tensors(sampler):
        raise InputError(
            "Expected one of manyhop_dgl's samplers, with its own methods, for output='tensors', also beneath "
            f"as_edge_prediction_sampler, got a {type(sampler_of_nodes(sampler)).__name__}. Leave output out."
        )
    if sampler.output_device is not None:
        raise InputError("Got a sampler with output_device for output='tensors'. Pass device to the loader instead.")


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
