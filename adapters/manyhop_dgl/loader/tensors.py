"""Batches as tensors (``output="tensors"``): the data that a sampler asks for, in blocks of plain tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import dgl
import torch
from dgl.dataloading import BlockSampler
from dgl.heterograph import DGLBlock
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import EdgeType, NodeType
from manyhop.pipeline import PaddedRows, clear_rows
from manyhop_dgl.edges.prediction import EdgePredictionSampler
from manyhop_dgl.edges.tensors import EdgeTensors
from manyhop_dgl.graph.frames import frames
from manyhop_dgl.loader.storages import Filled, MissingDataError, Prefetching, Wanted
from manyhop_dgl.samplers.blocks import to_blocks
from manyhop_dgl.samplers.features import wanted
from manyhop_dgl.samplers.neighbor import EngineSampler
from manyhop_dgl.samplers.tensors import BlockEdges, BlockTensors, only
from manyhop_dgl.typing import GraphLike, Names, Nodes, Pairs

KindT = TypeVar("KindT")
Rows = dict[str, dict[Any, Tensor]]


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
    edge_types: list[EdgeType]

    def rows(self) -> Iterator[Tensor]:
        """All rows that have been gathered."""
        for rows in (self.nodes, self.outputs, *self.edges, self.seeds):
            yield from (value for _, value in _each(rows))


class TensorPrefetcher(Prefetching):
    """Gives blocks of tensors the data that a graph has at that moment.

    Args:
        graph: where the data are.
        sampler: names those that are wanted.
    """

    def __init__(self, graph: GraphLike, sampler: BlockSampler) -> None:
        self._graph, self._sampler = graph, sampler

    def collect(self, batch: BlockTensors | EdgeTensors, into: list[Wanted]) -> Parts:
        """Note what is wanted for a batch."""
        data, sampler = frames(self._graph), sampler_of_nodes(self._sampler)
        tensors = batch.sample if isinstance(batch, EdgeTensors) else batch
        parts = Parts(batch, tensors, {}, {}, [{} for _ in tensors.blocks], {}, list(data.edges))

        def note(names: Names, what: str, ids: dict[Any, Tensor], rows: Rows) -> None:
            kinds: Any = data.nodes if what == "node" else data.edges
            for name, kind in wanted(names, kinds, what):
                title = f"'{name}' of {what} type {kind!r}"
                assign = partial(rows.setdefault(name, {}).__setitem__, kind)
                bound = self._graph.num_nodes(kind) if what == "node" else self._graph.num_edges(kind)
                into.append(Wanted(partial(_value, kinds[kind], name, title), ids[kind], title, assign, bound))

        note(sampler.prefetch_node_feats, "node", tensors.node, parts.nodes)
        outputs = {kind: node[: tensors.num_seeds[kind]] for kind, node in tensors.node.items()}
        note(sampler.prefetch_labels, "node", outputs, parts.outputs)
        for block, rows in zip(tensors.blocks, parts.edges, strict=True):
            note(sampler.prefetch_edge_feats, "edge", dict(zip(data.edges, block.ids.values(), strict=True)), rows)
        if isinstance(batch, EdgeTensors):
            note(self._sampler.prefetch_labels, "edge", batch.ids, parts.seeds)
        return parts

    def clear(self, batches: Sequence[Filled]) -> None:
        """Let the rows of padding be zeros."""
        rows: list[PaddedRows] = []
        of_seeds: list[Tensor] = []
        for filled in batches:
            parts: Parts = filled.batch
            padded, last = parts.tensors.padding, len(parts.edges) - 1
            if padded is None:
                continue
            own = dict(zip(parts.edge_types, padded.sizes.edges, strict=True))  # as the sampler has them
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


def _each(rows: Rows) -> Iterator[tuple[Any, Tensor]]:
    """Type and rows."""
    for by_type in rows.values():
        yield from by_type.items()


def _value(data: Mapping[str, object], name: str, title: str) -> object:
    """What there is when this is asked: ``data`` is a view."""
    if name not in data:
        raise MissingDataError(f"Expected the graph to have data {title}, got none. Set it before iterating.")
    return data[name]


def sampler_of_nodes(sampler: BlockSampler) -> BlockSampler:
    """The sampler itself, or the one beneath a sampler of edges."""
    return sampler.sampler if isinstance(sampler, EdgePredictionSampler) else sampler


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


def as_blocks(batch: BlockTensors) -> tuple[Nodes, Nodes, list[DGLBlock]]:
    """The same batch in DGL's objects, with its data in their frames."""
    blocks = to_blocks(batch)
    node_types, edge_types = list(batch.node), list(batch.blocks[0].columns)
    sources, targets = blocks[0]._node_frames, blocks[-1]._node_frames[len(node_types) :]
    for data, kinds, frames_of_types in (
        (batch.node_features, node_types, sources),
        (batch.output_features, node_types, targets),
    ):
        for name, rows in data.items():
            for kind, value in _by_type(rows, kinds).items():
                frames_of_types[kinds.index(kind)][name] = value
    for block, by_name in zip(blocks, batch.edge_features, strict=False):
        for name, of_edges in by_name.items():
            for edge_type, value in _by_type(of_edges, edge_types).items():
                block._edge_frames[edge_types.index(edge_type)][name] = value
    if batch.masks is not None:
        for block, tensors in zip(blocks, batch.blocks, strict=True):
            _put_masks(block, batch.masks, tensors)
    return batch.input_nodes, batch.output_nodes, blocks


def _put_masks(block: DGLBlock, masks: Mapping[NodeType, Tensor], tensors: BlockEdges) -> None:
    for t, mask in masks.items():
        block.srcnodes[t].data["node_mask"] = mask[: tensors.num_src[t]]
        block.dstnodes[t].data["node_mask"] = mask[: tensors.num_dst[t]]
    for edge_type, mask in (tensors.masks or {}).items():
        block.edges[edge_type].data["edge_mask"] = mask


def as_graphs(batch: EdgeTensors) -> tuple[Any, ...]:
    """Seed edges, negatives and blocks in DGL's objects, of a padded batch."""
    input_nodes, _, blocks = as_blocks(batch.sample)
    positive = _pair_graph(batch, batch.ends, batch.masks)
    edge_types = list(batch.ends)
    for t, ids in batch.ids.items():
        positive.edges[t].data[dgl.EID] = ids
    for name, rows in batch.edge_features.items():
        for t, value in _by_type(rows, edge_types).items():
            positive.edges[t].data[name] = value
    if batch.negative_ends is None:
        return input_nodes, positive, blocks
    return input_nodes, positive, _pair_graph(batch, batch.negative_ends, batch.negative_masks), blocks


def _pair_graph(
    batch: EdgeTensors, ends: dict[EdgeType, Pairs], masks: Mapping[EdgeType, Tensor] | None
) -> dgl.DGLGraph:
    """The graph of some pairs of output nodes, with its masks."""
    sample = batch.sample
    graph = dgl.heterograph(ends, sample.num_seeds)
    for t, n in sample.num_seeds.items():
        graph.nodes[t].data[dgl.NID] = sample.node[t][:n]
        if sample.masks is not None:
            graph.nodes[t].data["node_mask"] = sample.masks[t][:n]
    for edge_type, mask in (masks or {}).items():
        graph.edges[edge_type].data["edge_mask"] = mask
    return graph


def _by_type(rows: Tensor | dict[KindT, Tensor], kinds: list[KindT]) -> dict[KindT, Tensor]:
    return {kinds[0]: rows} if isinstance(rows, Tensor) else rows
