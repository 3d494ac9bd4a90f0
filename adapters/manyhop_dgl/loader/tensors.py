"""Batches as tensors (``output="tensors"``): the data that a sampler asks for, in blocks of plain tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import dgl
import torch
from dgl.dataloading import BlockSampler
from dgl.frame import Frame
from dgl.heterograph import DGLBlock
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import EdgeType, NodeType
from manyhop.pipeline import PaddedRows, clear_rows
from manyhop_dgl.edges.pair_graphs import index_of_pairs
from manyhop_dgl.edges.prediction import EdgePredictionSampler
from manyhop_dgl.edges.tensors import EdgeTensors
from manyhop_dgl.graph.dgl_frames import frames_of_ids, make_column, make_frame
from manyhop_dgl.graph.graph import Graph
from manyhop_dgl.loader.prefetched import Entry, Prefetched, sampler_of_nodes
from manyhop_dgl.loader.storages import Filled, MissingDataError, Prefetching, Wanted
from manyhop_dgl.samplers.blocks import lazy_frames, to_blocks
from manyhop_dgl.samplers.neighbor import EngineSampler
from manyhop_dgl.samplers.tensors import BlockEdges, BlockTensors, only
from manyhop_dgl.typing import Nodes, Pairs

Rows = dict[str, dict[Any, Tensor]]
Frames = tuple[Sequence[Frame], Sequence[Frame]]
"""Of node types and of edge types."""

_KnownFrames = tuple[list[tuple[str, Any]], Frames]


@dataclass(slots=True)
class Parts:
    """A batch whose data are on their way: name -> type -> rows."""

    batch: BlockTensors | EdgeTensors
    tensors: BlockTensors
    nodes: Rows
    outputs: Rows
    edges: list[Rows]
    seeds: Rows
    """Of seed edges."""

    def rows(self) -> list[Tensor]:
        """All rows that have been gathered."""
        return [value for rows in (self.nodes, self.outputs, *self.edges, self.seeds) for _, value in _each(rows)]


class TensorPrefetcher(Prefetching):
    """Gives blocks of tensors the data that a graph has at that moment.

    Args:
        graph: where the data are.
        sampler: names those that are wanted.
    """

    def __init__(self, graph: Graph | dgl.DGLGraph, sampler: BlockSampler) -> None:
        self._graph, self._prefetched = graph, Prefetched(graph, sampler)
        self._frames: _KnownFrames = [("", None)], ([], [])  # in one piece, as several threads read it

    def collect(self, batch: BlockTensors | EdgeTensors, into: list[Wanted]) -> Parts:
        """Note what is wanted for a batch."""
        tensors = batch.sample if isinstance(batch, EdgeTensors) else batch
        parts = Parts(batch, tensors, {}, {}, [{} for _ in tensors.blocks], {})
        for entry in self._prefetched.all_entries():
            kind = entry.kind
            if entry.part == "nodes":
                places = [(tensors.node[kind], parts.nodes)]
            elif entry.part == "outputs":
                places = [(tensors.node[kind][: tensors.num_seeds[kind]], parts.outputs)]
            elif entry.part == "edges":
                ids = [list(block.ids.values())[entry.at] for block in tensors.blocks]
                places = list(zip(ids, parts.edges, strict=True))
            else:
                assert isinstance(batch, EdgeTensors)
                places = [(batch.ids[kind], parts.seeds)]
            lookup = partial(self._value, entry)
            for wanted, rows in places:
                assign = partial(rows.setdefault(entry.name, {}).__setitem__, kind)
                into.append(Wanted(lookup, wanted, entry.title, assign, entry.bound))
        return parts

    def frames(self) -> Frames:
        """DGL's frames of all data of the graph, as they are now."""
        graph = self._graph
        if isinstance(graph, dgl.DGLGraph):
            return graph._node_frames, graph._edge_frames
        held = [value for by in (graph.node_frames, graph.edge_frames) for f in by.values() for value in f.data.items()]
        known, frames = self._frames
        if len(held) != len(known) or any([a is not b or m != n for (m, a), (n, b) in zip(held, known, strict=True)]):
            frames = lazy_frames(graph)
            self._frames = held, frames
        return frames

    def _value(self, entry: Entry) -> object:
        """What there is when this is asked."""
        value = self._prefetched.value(entry)
        if value is None:
            raise MissingDataError(f"Expected the graph to have data {entry.title}, got none. Set it before iterating.")
        return value

    def clear(self, batches: Sequence[Filled]) -> None:
        """Let the rows of padding be zeros."""
        rows: list[PaddedRows] = []
        of_seeds: list[Tensor] = []
        for filled in batches:
            parts: Parts = filled.batch
            padded, last = parts.tensors.padding, len(parts.edges) - 1
            if padded is None:
                continue
            for one in filled.wanted:
                if one.ahead is not None:
                    raise InputError(
                        f"Expected no embedding to be prefetched with pad='auto', got {one.title}: padding nodes have "
                        "no rows. Take it out of the sampler's prefetch_node_feats, and call it with input_nodes."
                    )
            own = dict(zip(self._graph.canonical_etypes, padded.sizes.edges, strict=True))  # as the sampler has them
            rows += [PaddedRows(value, padded, t) for t, value in _each(parts.nodes)]
            rows += [PaddedRows(value, padded, t, block=0) for t, value in _each(parts.outputs)]
            for i, of_edges in enumerate(parts.edges):
                rows += [PaddedRows(value, padded, own[t], block=last - i) for t, value in _each(of_edges)]
            if isinstance(parts.batch, EdgeTensors) and parts.batch.num_edges is not None:
                of_seeds += [value[parts.batch.num_edges[t] :] for t, value in _each(parts.seeds)]
        if rows:
            clear_rows(rows)
        if of_seeds:
            torch._foreach_zero_(of_seeds)

    def settle(self, parts: Parts) -> BlockTensors | EdgeTensors:
        """The batch, complete."""
        num_node_types, num_edge_types = len(self._graph.ntypes), len(self._graph.canonical_etypes)

        def complete(rows: Rows, num_types: int) -> dict[str, Any]:
            return {name: only(by_type, among=num_types) for name, by_type in rows.items()}

        tensors = replace(
            parts.tensors,
            node_features=complete(parts.nodes, num_node_types),
            output_features=complete(parts.outputs, num_node_types),
            edge_features=[complete(rows, num_edge_types) for rows in parts.edges] if any(parts.edges) else [],
            padding=None,
        )
        if isinstance(parts.batch, EdgeTensors):
            return replace(parts.batch, sample=tensors, edge_features=complete(parts.seeds, num_edge_types))
        return tensors


def _each(rows: Rows) -> list[tuple[Any, Tensor]]:
    """Type and rows."""
    return [item for by_type in rows.values() for item in by_type.items()]


def samples_tensors(sampler: BlockSampler) -> bool:
    """Whether a sampler can sample without DGL's objects: it is one of manyhop's, whose methods nobody has replaced."""
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
        raise InputError(
            "Got a sampler with output_device for output='tensors'. Pass device to the loader in its place."
        )


def as_blocks(parts: Parts, frames: Frames | None) -> tuple[Nodes, Nodes, list[DGLBlock]]:
    """A complete batch in DGL's objects, with its data in their frames; other data are rows of ``frames``."""
    tensors = parts.tensors
    blocks, kinds = to_blocks(tensors, frames=frames), list(tensors.node)
    _put_rows(blocks[0]._node_frames, kinds, parts.nodes)
    _put_rows(blocks[-1]._node_frames[len(kinds) :], kinds, parts.outputs)
    for block, rows in zip(blocks, parts.edges, strict=True):
        if rows:
            _put_rows(block._edge_frames, block.canonical_etypes, rows)
    if tensors.masks is not None:
        for block, edges in zip(blocks, tensors.blocks, strict=True):
            _put_masks(block, tensors.masks, edges)
    return tensors.input_nodes, tensors.output_nodes, blocks


def _put_rows(frames: Sequence[Frame], kinds: Sequence[Any], rows: Rows) -> None:
    for name, by_type in rows.items():
        for kind, value in by_type.items():
            frames[kinds.index(kind)]._columns[name] = make_column(value)


def _put_masks(block: DGLBlock, masks: Mapping[NodeType, Tensor], tensors: BlockEdges) -> None:
    for t, mask in masks.items():
        block.srcnodes[t].data["node_mask"] = mask[: tensors.num_src[t]]
        block.dstnodes[t].data["node_mask"] = mask[: tensors.num_dst[t]]
    for edge_type, mask in (tensors.masks or {}).items():
        block.edges[edge_type].data["edge_mask"] = mask


def as_graphs(parts: Parts, batch: EdgeTensors, frames: Frames | None) -> tuple[Any, ...]:
    """Seed edges, negatives and blocks of a complete batch in DGL's objects; see :func:`as_blocks`."""
    input_nodes, _, blocks = as_blocks(parts, frames)
    of_nodes, of_edges = (None, None) if frames is None else frames
    none = next(iter(batch.ids.values()))[:0]
    edges = frames_of_ids(dgl.EID, [batch.ids.get(t, none) for t in batch.ends], of_edges)
    positive = _pair_graph(batch, batch.ends, batch.masks, edges, of_nodes)
    _put_rows(edges, list(batch.ends), parts.seeds)
    if batch.negative_ends is None:
        return input_nodes, positive, blocks
    edges = [make_frame(src.shape[0], {}) for src, _ in batch.negative_ends.values()]
    return input_nodes, positive, _pair_graph(batch, batch.negative_ends, batch.negative_masks, edges, None), blocks


def _pair_graph(
    batch: EdgeTensors,
    ends: dict[EdgeType, Pairs],
    masks: Mapping[EdgeType, Tensor] | None,
    edges: list[Frame],
    of_nodes: Sequence[Frame] | None,
) -> dgl.DGLGraph:
    """The graph of some pairs of output nodes, with its masks."""
    sample, node_types, edge_types = batch.sample, list(batch.sample.num_seeds), list(ends)
    num_nodes = list(sample.num_seeds.values())
    nodes = frames_of_ids(dgl.NID, [sample.node[t][:n] for t, n in sample.num_seeds.items()], of_nodes)
    for frame, (t, n) in zip(nodes, sample.num_seeds.items(), strict=True):
        if sample.masks is not None:
            frame._columns["node_mask"] = make_column(sample.masks[t][:n])
    for frame, edge_type in zip(edges, edge_types, strict=True):
        if masks is not None and edge_type in masks:
            frame._columns["edge_mask"] = make_column(masks[edge_type])
    index = index_of_pairs(node_types, edge_types, num_nodes, ends)
    return dgl.DGLGraph(index, node_types, [relation for _, relation, _ in edge_types], nodes, edges)
