"""Batches as tensors (``output="tensors"``): the data that a sampler asks for, in blocks of plain tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from dgl.dataloading import BlockSampler
from dgl.heterograph import DGLBlock
from torch import Tensor

from manyhop.errors import InputError
from manyhop_dgl.edges.prediction import EdgePredictionSampler
from manyhop_dgl.edges.tensors import EdgeTensors
from manyhop_dgl.graph.frames import frames
from manyhop_dgl.loader.storages import MissingDataError, Prefetching, Wanted
from manyhop_dgl.samplers.blocks import to_blocks
from manyhop_dgl.samplers.features import wanted
from manyhop_dgl.samplers.neighbor import EngineSampler
from manyhop_dgl.samplers.tensors import BlockTensors, only
from manyhop_dgl.typing import GraphLike, Names, Nodes

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

    def rows(self) -> Iterator[Tensor]:
        """All rows that have been gathered."""
        for rows in (self.nodes, self.outputs, *self.edges, self.seeds):
            for by_type in rows.values():
                yield from by_type.values()


class TensorPrefetcher(Prefetching):
    """Gives blocks of tensors the data that a graph has at that moment.

    Args:
        graph: where the data are.
        sampler: says which are wanted.
    """

    def __init__(self, graph: GraphLike, sampler: BlockSampler) -> None:
        self._graph, self._sampler = graph, sampler

    def collect(self, batch: BlockTensors | EdgeTensors, into: list[Wanted]) -> Parts:
        """Note what is wanted for a batch."""
        data, sampler = frames(self._graph), sampler_of_nodes(self._sampler)
        tensors = batch.sample if isinstance(batch, EdgeTensors) else batch
        parts = Parts(batch, tensors, {}, {}, [{} for _ in tensors.blocks], {})

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
        )
        if isinstance(parts.batch, EdgeTensors):
            return replace(parts.batch, sample=tensors, edge_features=complete(parts.seeds, num_edge_types))
        return tensors


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
    for name, rows in batch.node_features.items():
        for kind, value in _by_type(rows, node_types).items():
            blocks[0].srcnodes[kind].data[name] = value
    for name, rows in batch.output_features.items():
        for kind, value in _by_type(rows, node_types).items():
            blocks[-1].dstnodes[kind].data[name] = value
    for block, by_name in zip(blocks, batch.edge_features, strict=False):
        for name, of_edges in by_name.items():
            for edge_type, value in _by_type(of_edges, edge_types).items():
                block.edges[edge_type].data[name] = value
    return batch.input_nodes, batch.output_nodes, blocks


def _by_type(rows: Tensor | dict[KindT, Tensor], kinds: list[KindT]) -> dict[KindT, Tensor]:
    return {kinds[0]: rows} if isinstance(rows, Tensor) else rows
