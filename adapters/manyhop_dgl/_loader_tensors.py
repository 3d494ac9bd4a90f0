"""Batches as tensors (``output="tensors"``): the data that a sampler asks for, in blocks of plain tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from manyhop.errors import InputError
from manyhop_dgl._blocks import to_blocks
from manyhop_dgl._edge_prediction import EdgePredictionSampler
from manyhop_dgl._frames import frames
from manyhop_dgl._samplers import EngineSampler
from manyhop_dgl._samplers_features import Names, wanted
from manyhop_dgl._samplers_tensors import BlockTensors, only
from manyhop_dgl._storages import MissingDataError, Prefetching, Wanted

Rows = dict[str, dict[Any, Tensor]]


@dataclass(slots=True)
class Parts:
    """A batch whose data are on their way: name -> type -> rows."""

    tensors: BlockTensors
    nodes: Rows
    outputs: Rows
    edges: list[Rows]

    def rows(self) -> Iterator[Tensor]:
        """All rows that have been gathered."""
        for rows in (self.nodes, self.outputs, *self.edges):
            for by_type in rows.values():
                yield from by_type.values()


class TensorPrefetcher(Prefetching):
    """Gives blocks of tensors the data that a graph has at that moment.

    Args:
        graph: where the data are.
        sampler: says which are wanted.
    """

    def __init__(self, graph: Any, sampler: EngineSampler) -> None:
        self._graph, self._sampler = graph, sampler

    def collect(self, batch: BlockTensors, into: list[Wanted]) -> Parts:
        """Note what is wanted for a batch."""
        data, sampler = frames(self._graph), self._sampler
        parts = Parts(batch, {}, {}, [{} for _ in batch.blocks])

        def note(names: Names, what: str, ids: dict[Any, Tensor], rows: Rows) -> None:
            kinds: Any = data.nodes if what == "node" else data.edges
            for name, kind in wanted(names, kinds, what):
                title = f"'{name}' of {what} type {kind!r}"
                assign = partial(rows.setdefault(name, {}).__setitem__, kind)
                bound = self._graph.num_nodes(kind) if what == "node" else self._graph.num_edges(kind)
                into.append(Wanted(partial(_value, kinds[kind], name, title), ids[kind], title, assign, bound))

        note(sampler.prefetch_node_feats, "node", batch.node, parts.nodes)
        outputs = {kind: node[: batch.num_seeds[kind]] for kind, node in batch.node.items()}
        note(sampler.prefetch_labels, "node", outputs, parts.outputs)
        for block, rows in zip(batch.blocks, parts.edges, strict=True):
            note(sampler.prefetch_edge_feats, "edge", dict(zip(data.edges, block.ids.values(), strict=True)), rows)
        return parts

    def settle(self, parts: Parts) -> BlockTensors:
        """The batch, complete."""
        num_node_types, num_edge_types = len(self._graph.ntypes), len(self._graph.canonical_etypes)
        return replace(
            parts.tensors,
            node_features={name: only(rows, among=num_node_types) for name, rows in parts.nodes.items()},
            output_features={name: only(rows, among=num_node_types) for name, rows in parts.outputs.items()},
            edge_features=[
                {name: only(rows, among=num_edge_types) for name, rows in block.items()} for block in parts.edges
            ]
            if self._sampler.prefetch_edge_feats
            else [],
        )


def _value(data: Mapping[str, Any], name: str, title: str) -> Any:
    """What there is when this is asked: ``data`` is a view."""
    if name not in data:
        raise MissingDataError(f"Expected the graph to have data {title}, got none. Set it before iterating.")
    return data[name]


def check_tensors(sampler: Any) -> None:
    """Raise InputError unless a sampler can sample without DGL's objects."""
    if not isinstance(sampler, EngineSampler):
        also = " Links are to be sampled as blocks." if isinstance(sampler, EdgePredictionSampler) else ""
        raise InputError(
            "Expected one of manyhop_dgl's samplers of nodes for output='tensors', got a "
            f"{type(sampler).__name__}.{also} Leave output out."
        )
    if sampler.output_device is not None:
        raise InputError(
            "Got a sampler with output_device for output='tensors'. Pass device to the loader in its place."
        )


def as_blocks(batch: BlockTensors) -> tuple[Any, Any, list[Any]]:
    """The same batch in DGL's objects, with its data in their frames; on a GPU with a CUDA build of DGL."""
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


def _by_type(rows: Any, kinds: list[Any]) -> dict[Any, Tensor]:
    return {kinds[0]: rows} if isinstance(rows, Tensor) else rows
