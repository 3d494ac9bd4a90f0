"""Batches as tensors: blocks around seed nodes, and around seed edges; values in batches of other forms."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, repeat
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from manyhop.graph import EdgeType, NodeType
from manyhop.loading.pipeline import Counts, Padded
from manyhop_dgl.typing import Pairs

T = TypeVar("T")
ValueT = TypeVar("ValueT")

_cutting = threading.Lock()


@dataclass(slots=True, kw_only=True, eq=False)
class BlockEdges:
    """One block: the edges from its source nodes to its destination nodes, compressed by destination (CSC).

    The destination nodes are the first of the source nodes. In a graph with one edge type, ``indptr``, ``indices``,
    ``edge_ids`` and ``edge_weights`` are tensors, otherwise keyed by edge type.
    """

    num_src: dict[NodeType, int]
    """Source nodes per node type: the first nodes of the batch."""

    num_dst: dict[NodeType, int]
    """Destination nodes per node type: the first nodes of the batch."""

    columns: dict[EdgeType, Tensor]
    """``[num_dst + 1]``: where each destination's edges begin."""

    sources: dict[EdgeType, Tensor]
    """``[num_edges]``: the source of each edge, an index into the nodes of the batch."""

    ids: dict[EdgeType, Tensor]
    """``[num_edges]``: the graph's id of each edge."""

    weights: dict[EdgeType, Tensor] | None = None
    """``[num_edges] float32``: factors of messages, if the sampler returns weights."""

    masks: dict[EdgeType, Tensor] | None = None
    """``[num_edges] bool``: which edges are real; ``None`` without padding."""

    @property
    def indptr(self) -> Tensor | dict[EdgeType, Tensor]:
        """``columns``, of the one edge type or by edge type."""
        return only(self.columns)

    @property
    def indices(self) -> Tensor | dict[EdgeType, Tensor]:
        """``sources``, of the one edge type or by edge type."""
        return only(self.sources)

    @property
    def edge_ids(self) -> Tensor | dict[EdgeType, Tensor]:
        """``ids``, of the one edge type or by edge type."""
        return only(self.ids)

    @property
    def edge_weights(self) -> Tensor | dict[EdgeType, Tensor] | None:
        """``weights``, of the one edge type or by edge type."""
        return None if self.weights is None else only(self.weights, among=len(self.columns))

    @property
    def edge_mask(self) -> Tensor | dict[EdgeType, Tensor] | None:
        """``masks``, of the one edge type or by edge type."""
        return None if self.masks is None else only(self.masks)


@dataclass(slots=True, kw_only=True, eq=False)
class Hops:
    """The edges of all hops of a batch, the seeds' first; blocks are cut from them when they are read."""

    num_nodes: list[dict[NodeType, int]]
    """``[num_hops + 1]``: the seeds, then the nodes up to each hop."""

    num_edges: dict[EdgeType, list[int]]
    """``[num_hops]``: edges of each hop."""

    columns: Tensor
    """Per edge type and hop ``[num_dst + 1]``: where each destination's edges begin."""

    sources: dict[EdgeType, Tensor]
    """``[num_edges]``: the source of each edge, an index into the nodes of the batch."""

    ids: dict[EdgeType, Tensor]
    """``[num_edges]``: the graph's id of each edge."""

    weights: dict[EdgeType, Tensor] | None = None
    """``[num_edges] float32``; ``None``: the sampler returns no weights."""

    masks: dict[EdgeType, Tensor] | None = None
    """``[num_edges] bool``: which edges are real; ``None`` without padding."""

    def cut(self) -> list[BlockEdges]:
        """Return the blocks, the input layer first: views."""
        num_nodes, edge_types = self.num_nodes, self.num_edges
        # Unlike views from split(), these tensors do not share a version counter: users may change them one by one.
        sizes = [dst[t[2]] + 1 for t in edge_types for dst in num_nodes[:-1]]
        columns = self.columns.unsafe_split_with_sizes(sizes)
        sources, ids = self.by_hop(self.sources), self.by_hop(self.ids)
        weights, masks = (repeat(None) if whole is None else self.by_hop(whole) for whole in (self.weights, self.masks))
        blocks = [
            BlockEdges(
                num_src=src,
                num_dst=dst,
                columns=dict(zip(edge_types, columns[hop :: len(num_nodes) - 1], strict=True)),
                sources=of_hop,
                ids=ids_of_hop,
                weights=weights_of_hop,
                masks=masks_of_hop,
            )
            for hop, ((dst, src), of_hop, ids_of_hop, weights_of_hop, masks_of_hop) in enumerate(
                zip(pairwise(num_nodes), sources, ids, weights, masks, strict=False)
            )
        ]
        blocks.reverse()
        return blocks

    def by_hop(self, whole: Mapping[EdgeType, Tensor]) -> list[dict[EdgeType, Tensor]]:
        """Return for each hop its part of tensors with a row per edge."""
        found: list[dict[EdgeType, Tensor]] = [{} for _ in self.num_nodes[1:]]
        for t, values in whole.items():
            for of_hop, part in zip(found, values.unsafe_split_with_sizes(self.num_edges[t]), strict=True):
                of_hop[t] = part
        return found

    def tensors(self) -> list[Tensor]:
        """Return all tensors, uncut."""
        found = [self.columns, *self.sources.values(), *self.ids.values()]
        for by_type in (self.weights, self.masks):
            if by_type is not None:
                found += by_type.values()
        return found

    def map(self, change: Callable[[Tensor], Tensor]) -> Hops:
        """Change each tensor."""
        return replace(
            self,
            columns=change(self.columns),
            sources=_each(self.sources, change),
            ids=_each(self.ids, change),
            weights=None if self.weights is None else _each(self.weights, change),
            masks=None if self.masks is None else _each(self.masks, change),
        )


@dataclass(slots=True, kw_only=True, eq=False)
class BlockTensors:
    """A batch: the blocks of all layers, the input layer first. Ids are of the graph's dtype, on the sampler's device.

    In a graph with one node type, ``input_nodes`` and ``output_nodes`` are tensors, otherwise keyed by node type.
    """

    node: dict[NodeType, Tensor]
    """``[num_nodes]``: the nodes of the batch: the seeds in the given order, then the others, layer by layer. A block's
    sources are the first ``num_src`` of them, its destinations the first ``num_dst``."""

    num_seeds: dict[NodeType, int]
    """Seeds per node type."""

    hops: Hops
    """The edges that ``blocks`` are cut from."""

    node_features: dict[str, Tensor | dict[NodeType, Tensor]] = field(default_factory=dict)
    """Name -> ``[num_nodes, ...]``: rows of the input nodes, where requested."""

    output_features: dict[str, Tensor | dict[NodeType, Tensor]] = field(default_factory=dict)
    """Name -> ``[num_seeds, ...]``: rows of the output nodes, such as labels, where requested."""

    edge_features: list[dict[str, Tensor | dict[EdgeType, Tensor]]] = field(default_factory=list)
    """Per block: name -> ``[num_edges, ...]``: rows of its edges, where requested."""

    masks: dict[NodeType, Tensor] | None = None
    """``[num_nodes] bool``: which nodes are real; ``None`` without padding."""

    padding: Padded | None = None
    """The padding; ``None`` without, and in complete batches."""

    _blocks: list[BlockEdges] | None = field(default=None, init=False, repr=False)

    @property
    def node_mask(self) -> Tensor | dict[NodeType, Tensor] | None:
        """``masks``, of the one node type or by node type."""
        return None if self.masks is None else only(self.masks)

    @property
    def blocks(self) -> list[BlockEdges]:
        """One per layer, the input layer first."""
        if self._blocks is None:
            with _cutting:  # the same blocks in all threads
                if self._blocks is None:
                    self._blocks = self.hops.cut()
        return self._blocks

    @property
    def counts(self) -> Counts:
        """Nodes of each hop, the seeds first, and edges of each hop."""
        hops = self.hops
        nodes = {t: [ends[t] for ends in hops.num_nodes] for t in self.num_seeds}
        return Counts(
            nodes={t: (ends[0], *(b - a for a, b in pairwise(ends))) for t, ends in nodes.items()},
            edges={t: tuple(numbers) for t, numbers in hops.num_edges.items()},
        )

    @property
    def input_nodes(self) -> Tensor | dict[NodeType, Tensor]:
        """``[num_nodes]``: the nodes whose features the first layer reads."""
        return only(self.node)

    @property
    def output_nodes(self) -> Tensor | dict[NodeType, Tensor]:
        """``[num_seeds]``: the seeds."""
        return only({t: node[: self.num_seeds[t]] for t, node in self.node.items()})

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> BlockTensors:
        """Copy to another device."""
        return self.map(partial(Tensor.to, device=torch.device(device), non_blocking=non_blocking))

    def map(self, change: Callable[[Tensor], Tensor]) -> BlockTensors:
        """Change each tensor."""
        return replace(
            self,
            node=_each(self.node, change),
            hops=self.hops.map(change),
            node_features=_each_row(self.node_features, change),
            output_features=_each_row(self.output_features, change),
            edge_features=[_each_row(rows, change) for rows in self.edge_features],
            masks=None if self.masks is None else _each(self.masks, change),
        )


def _each(tensors: Mapping[T, Tensor], change: Callable[[Tensor], Tensor]) -> dict[T, Tensor]:
    return {t: change(tensor) for t, tensor in tensors.items()}


def _each_row(
    rows: Mapping[str, Tensor | dict[T, Tensor]], change: Callable[[Tensor], Tensor]
) -> dict[str, Tensor | dict[T, Tensor]]:
    return {name: change(some) if isinstance(some, Tensor) else _each(some, change) for name, some in rows.items()}


def only(by_type: dict[T, ValueT], among: int | None = None) -> ValueT | dict[T, ValueT]:
    """Return the value of the only type, or all by type. ``among``: number of types of the graph, if larger."""
    return next(iter(by_type.values())) if (among or len(by_type)) == 1 else by_type


@dataclass(frozen=True, kw_only=True)
class EdgeTensors:
    """A batch of seed edges: blocks around their ends, and the positions of the ends among the output nodes.

    In a graph with one edge type, ``positives``, ``negatives`` and ``edge_ids`` are tensors, otherwise keyed by
    edge type.
    """

    sample: BlockTensors
    """The blocks; their output nodes are the ends of seed edges and negatives, each once."""

    ends: dict[EdgeType, Pairs]
    """Source and destination of each seed edge, ``[num_edges]`` each: indices into the output nodes of its types."""

    ids: dict[EdgeType, Tensor]
    """``[num_edges]``: the graph's id of each seed edge."""

    negative_ends: dict[EdgeType, Pairs] | None
    """Positions of the negatives; ``None`` without a negative sampler."""

    edge_features: dict[str, Tensor | dict[EdgeType, Tensor]] = field(default_factory=dict)
    """Name -> ``[num_edges, ...]``: rows of the seed edges, such as labels, if a loader requests them."""

    masks: dict[EdgeType, Tensor] | None = None
    """``[num_edges] bool``: which seed edges are real; ``None`` without padding."""

    negative_masks: dict[EdgeType, Tensor] | None = None
    """The same for the negatives."""

    num_edges: dict[EdgeType, int] | None = None
    """Number of real seed edges; ``None`` without padding."""

    @property
    def positives(self) -> Pairs | dict[EdgeType, Pairs]:
        """``ends``, of the one edge type or by edge type."""
        return only(self.ends)

    @property
    def negatives(self) -> Pairs | dict[EdgeType, Pairs] | None:
        """``negative_ends``, of the one edge type or by edge type."""
        return None if self.negative_ends is None else only(self.negative_ends)

    @property
    def edge_ids(self) -> Tensor | dict[EdgeType, Tensor]:
        """``ids``, of the one edge type or by edge type."""
        return only(self.ids)

    @property
    def positive_mask(self) -> Tensor | dict[EdgeType, Tensor] | None:
        """``masks``, of the one edge type or by edge type."""
        return None if self.masks is None else only(self.masks)

    @property
    def negative_mask(self) -> Tensor | dict[EdgeType, Tensor] | None:
        """``negative_masks``, of the one edge type or by edge type."""
        return None if self.negative_masks is None else only(self.negative_masks)

    def to(self, device: torch.device | str) -> EdgeTensors:
        """Copy to another device."""

        return self.map(partial(Tensor.to, device=torch.device(device)))

    def map(self, change: Callable[[Tensor], Tensor]) -> EdgeTensors:
        """Change each tensor."""

        def both(pairs: dict[EdgeType, Pairs]) -> dict[EdgeType, Pairs]:
            return {t: (change(src), change(dst)) for t, (src, dst) in pairs.items()}

        return replace(
            self,
            sample=self.sample.map(change),
            ends=both(self.ends),
            ids=_each(self.ids, change),
            negative_ends=None if self.negative_ends is None else both(self.negative_ends),
            edge_features=_each_row(self.edge_features, change),
            masks=None if self.masks is None else _each(self.masks, change),
            negative_masks=None if self.negative_masks is None else _each(self.negative_masks, change),
        )


Sample: TypeAlias = BlockTensors | EdgeTensors
"""A batch around seed nodes, or around seed edges."""


class Composite:
    """A batch, or a part of one, that consists of its attributes."""

    def moving(self) -> Iterable[str]:
        """Return the names of the attributes that go to a GPU."""
        return tuple(vars(self))


def apply_nested(value: object, function: Callable[[object], object]) -> Any:
    """Apply ``function`` to everything in nested dictionaries, lists and tuples; return the results, nested alike.

    Classes of the user that are derived from these become plain ones, but for named tuples.
    """
    if isinstance(value, Mapping):
        return {name: apply_nested(part, function) for name, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(apply_nested(part, function) for part in value))
    if isinstance(value, list | tuple):
        parts = [apply_nested(part, function) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return function(value)


def all_in_nested(kind: type[T], value: object) -> list[T]:
    """Return the objects of a class in nested dictionaries, lists and tuples."""
    if isinstance(value, kind):
        return [value]
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    found: list[T] = []
    for part in value:
        found += all_in_nested(kind, part)
    return found
