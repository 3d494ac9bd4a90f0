"""Sampling the layers of a minibatch: all by one call of the engine, or one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise, repeat
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, NodeType
from manyhop.loading.pipeline import Padded
from manyhop.sampling import LaborSpec, NeighborSpec, NodeRequest, SampledSubgraph
from manyhop.sampling.engines import Engine
from manyhop_dgl.samplers.keys import next_key
from manyhop_dgl.samplers.plan import columns_of, nodes_by_hop
from manyhop_graphbolt.graph.graph import FusedCSCSamplingGraph
from manyhop_graphbolt.graph.subgraph import CSCFormatBase, Excluded, SampledSubgraphImpl, columns_of_edges
from manyhop_graphbolt.graph.subgraph import SampledSubgraph as OneLayer
from manyhop_graphbolt.graph.topology import Topology, fanout_list
from manyhop_graphbolt.items.minibatch import MiniBatch
from manyhop_graphbolt.stages.functional import compact_csc_format, unique_and_compact_csc_formats
from manyhop_graphbolt.types import Nodes, etype_str_to_tuple, etype_tuple_to_str

Answer = Callable[[Sequence[MiniBatch], Topology, Sequence[SampledSubgraph]], list[MiniBatch]]


def fanout_tensors(fanouts: object) -> list[Tensor]:
    """Return ``[1]`` or ``[num_edge_types]`` integers per layer.

    Raises:
        InputError: no layer, or a fanout that is not a whole number.
    """
    if not isinstance(fanouts, Sequence | Tensor) or isinstance(fanouts, str) or len(fanouts) == 0:
        raise InputError(f"Expected at least one fanout, one per layer, got {fanouts!r}. Pass a list of integers.")
    return [f if isinstance(f, Tensor) else torch.tensor(fanout_list(f)) for f in fanouts]


def check_graph(graph: object, method: str, prob_name: object) -> None:
    """Raise InputError unless a graph has this method, and ``prob_name`` is the name of an attribute."""
    if hasattr(graph, "canonical_etypes"):
        raise InputError(f"Expected a FusedCSCSamplingGraph, got a {type(graph).__name__}. Pass gb.from_dglgraph(g).")
    if not callable(getattr(graph, method, None)):
        raise InputError(
            f"Expected a FusedCSCSamplingGraph, or an object with its {method}, got a {type(graph).__name__}."
        )
    if prob_name is not None and not isinstance(prob_name, str):
        raise InputError(
            f"Expected prob_name as the name of an edge attribute, got a {type(prob_name).__name__}. Add it to the "
            "graph by add_edge_attribute(name, values), and pass its name."
        )


class AllLayers:
    """Samples all layers by one call of the engine, and cuts them apart.

    Args:
        graph: the graph.
        fanouts: per layer ``[1]`` or ``[num_edge_types]``, the input layer first.
        replace: sample with replacement.
        prob_name: edge attribute with weights or a mask.
        method: of the graph's topology, which samples.
        options: further arguments of that method.
    """

    def __init__(
        self,
        graph: FusedCSCSamplingGraph,
        fanouts: Sequence[Tensor],
        replace: bool,
        prob_name: str | None,
        method: str,
        **options: object,
    ) -> None:
        self.graph, self._fanouts, self._prob_name = graph, fanouts, prob_name
        self._replace, self._method, self._options = replace, method, options
        self._known: tuple[Topology, NeighborSpec | LaborSpec] | None = None
        self._engine: tuple[Topology, torch.device, Engine] | None = None

    def __getstate__(self) -> dict[str, object]:
        return vars(self) | {"_known": None, "_engine": None}

    def arguments(self) -> dict[str, object]:
        """Return the arguments of sampling by name."""
        return {name: value for name, value in vars(self).items() if name not in ("_known", "_engine")}

    @property
    def in_pinned_memory(self) -> bool:
        """Whether the user has pinned the graph."""
        return bool(self.graph.is_pinned())

    def current(self) -> tuple[Topology, NeighborSpec | LaborSpec]:
        """Return the current topology of the graph, and its spec."""
        known = self._known
        if known is not None and known[0] is self.graph.topology(fused=known[0].fused, probs_name=self._prob_name):
            return known
        topology = self.graph.topology_for(self._fanouts, self._prob_name)
        spec = getattr(topology, self._method)(self._fanouts, replace=self._replace, **self._options)
        self._known = topology, spec
        return self._known

    def request(self, minibatch: MiniBatch, topology: Topology) -> NodeRequest:
        """Return what to sample for a minibatch."""
        return NodeRequest(key=next_key(), seeds=topology.seeds(minibatch._seed_nodes))

    def answer(
        self, minibatches: Sequence[MiniBatch], topology: Topology, samples: Sequence[SampledSubgraph]
    ) -> list[MiniBatch]:
        """Add samples to minibatches."""
        by_type = [topology.by_type(one) for one in samples]
        put_layers(minibatches, layers_of(by_type, with_ids=topology.has_original_edge_ids))
        return list(minibatches)

    def __call__(self, minibatch: MiniBatch, answer: Answer | None = None) -> MiniBatch:
        """Sample for a minibatch, which ``answer`` puts the sample into; default: :meth:`answer`."""
        topology, spec = self.current()
        seeds = minibatch._seed_nodes
        some = next(iter(seeds.values())) if isinstance(seeds, dict) else seeds
        known = self._engine
        if known is None or known[0] is not topology or known[1] != some.device:
            known = self._engine = topology, some.device, topology.sampler(spec, some.device)
        sample = known[2].sample(self.request(minibatch, topology))
        return (answer or self.answer)([minibatch], topology, [sample])[0]


def put_layers(minibatches: Sequence[MiniBatch], layers: Sequence[list[SampledSubgraphImpl]]) -> None:
    """Let each minibatch have its layers."""
    for minibatch, own in zip(minibatches, layers, strict=True):
        minibatch.input_nodes, minibatch.sampled_subgraphs = own[0].original_row_node_ids, own


def layers_of(samples: Sequence[SampledSubgraph], *, with_ids: bool) -> list[list[SampledSubgraphImpl]]:
    """Return the layers of samples whose hops ask for all nodes so far, the input layer first.

    Args:
        samples: from seeds to inputs, on one device; their tensors are not copied.
        with_ids: whether edges have ids.
    """
    num_nodes = [nodes_by_hop(sample) for sample in samples]
    indptrs = iter(columns_of(samples, num_nodes))
    return [_layers(*one, indptrs, with_ids) for one in zip(samples, num_nodes, strict=True)]


def _layers(
    sample: SampledSubgraph, num_nodes: list[dict[NodeType, int]], indptrs: Iterator[Tensor], with_ids: bool
) -> list[SampledSubgraphImpl]:
    edges = sample.num_sampled_edges
    assert edges is not None
    hetero = tuple(sample.node) != (HOMOGENEOUS_NODE,)
    hops: dict[str, Iterator[tuple[Any, ...]]] = {}
    for edge_type, sizes in edges.items():
        parts = sample.row[edge_type], sample.edge_id[edge_type] if with_ids else None
        rows, ids = [repeat(None) if part is None else part.unsafe_split_with_sizes(sizes) for part in parts]
        hops[_name(edge_type)] = zip([next(indptrs) for _ in sizes], rows, ids, strict=False)
    columns, *others = [{t: sample.node[t][:n] for t, n in ends.items()} for ends in num_nodes]
    layers: list[SampledSubgraphImpl] = []
    for nodes in others:
        csc, ids_of = {}, {}
        for name, hop in hops.items():
            indptr, row, ids_of[name] = next(hop)
            csc[name] = CSCFormatBase.trusted(indptr, row)
        layers.insert(0, _layer(csc, columns, nodes, ids_of if with_ids else None, hetero))
        columns = nodes
    return layers


def sample_of(layers: Sequence[OneLayer]) -> SampledSubgraph:
    """Return the sample that :func:`layers_of` cuts into these layers, by type.

    Args:
        layers: the input layer first. Rows of a layer begin with its columns, and are the columns of the one before.

    Raises:
        InputError: layers without nodes of rows and columns, or of other types than the seeds' layer.
    """
    nodes = [_by_type(one.original_column_node_ids) for one in reversed(layers)]
    nodes.append(_by_type(layers[0].original_row_node_ids if layers else None))
    hops = [_edges_by_type(one) for one in reversed(layers)]
    edge_types, node_types = list(hops[0]), list(nodes[0])
    if not all(list(hop) == edge_types for hop in hops) or not all(list(some) == node_types for some in nodes):
        raise InputError(
            "Expected layers with original_row_node_ids, original_column_node_ids and the same types in the same order,"
            " got others. Leave pad out."
        )
    ends = [{t: ids.numel() for t, ids in some.items()} for some in nodes]
    added = [ends[0], *({t: n - before[t] for t, n in own.items()} for before, own in pairwise(ends))]
    row, col, edge_id = dict[EdgeType, Tensor](), dict[EdgeType, Tensor](), dict[EdgeType, Tensor | None]()
    for t in edge_types:
        csc, ids = zip(*[hop[t] for hop in hops], strict=True)
        row[t] = torch.cat([one.indices for one in csc]).long()
        col[t] = torch.cat([columns_of_edges(one) for one in csc]).long()
        edge_id[t] = None if any(some is None for some in ids) else torch.cat(ids).long()
    return SampledSubgraph(
        node={t: ids.long() for t, ids in nodes[-1].items()},
        row=row,
        col=col,
        edge_id=edge_id,
        tree=None,
        num_sampled_nodes={t: [some[t] for some in added] for t in node_types},
        num_sampled_edges={t: [hop[t][0].indices.numel() for hop in hops] for t in edge_types},
    )


def are_nested(layers: Sequence[OneLayer]) -> bool:
    """Return whether the rows of each layer begin with its columns, and are the columns of the layer before."""
    nodes = [_by_type(layers[-1].original_column_node_ids)]
    for layer in reversed(layers):
        columns, rows = _by_type(layer.original_column_node_ids), _by_type(layer.original_row_node_ids)
        if not all(
            torch.equal(columns[t], ids) and torch.equal(rows[t][: ids.numel()], ids) for t, ids in nodes[-1].items()
        ):
            return False
        nodes.append(rows)
    return True


def _by_type(nodes: Nodes | None) -> Mapping[NodeType, Tensor]:
    return nodes if isinstance(nodes, Mapping) else {} if nodes is None else {HOMOGENEOUS_NODE: nodes}


def _edges_by_type(layer: OneLayer) -> dict[EdgeType, tuple[CSCFormatBase, Tensor | None]]:
    """Return the edges of a layer, and their ids."""
    csc, ids = layer.sampled_csc, layer.original_edge_ids
    if isinstance(csc, Mapping):
        return {
            etype_str_to_tuple(name): (one, ids[name] if isinstance(ids, Mapping) else None)
            for name, one in csc.items()
        }
    return {HOMOGENEOUS_EDGE: (csc, ids if isinstance(ids, Tensor) else None)}


def without_edges(sample: SampledSubgraph, edges: Excluded) -> SampledSubgraph:
    """Return a sample as :func:`layers_of` takes it without some edges in any layer; nodes remain.

    Args:
        sample: from seeds to inputs.
        edges: see :meth:`OneLayer.exclude_edges`.
    """
    assert sample.num_sampled_edges is not None
    keep = {t: torch.ones_like(row, dtype=torch.bool) for t, row in sample.row.items()}
    counts = {t: list(hops) for t, hops in sample.num_sampled_edges.items()}
    begins = dict.fromkeys(counts, 0)
    for hop, layer in enumerate(reversed(layers_of([sample], with_ids=False)[0])):
        for edge_type, drop in layer.edges_to_exclude(edges).items():
            t = HOMOGENEOUS_EDGE if edge_type is None else etype_str_to_tuple(edge_type)
            keep[t][begins[t] + drop] = False
            counts[t][hop] -= drop.numel()
        begins = {t: begin + sample.num_sampled_edges[t][hop] for t, begin in begins.items()}

    def kept(values: Mapping[EdgeType, Any]) -> dict[EdgeType, Any]:
        return {t: None if value is None else value[keep[t]] for t, value in values.items()}

    return replace(
        sample,
        row=kept(sample.row),
        col=kept(sample.col),
        edge_id=kept(sample.edge_id),
        edge_weight=None if sample.edge_weight is None else kept(sample.edge_weight),
        num_sampled_edges=counts,
    )


def mark_padding(minibatch: MiniBatch, layers: Sequence[SampledSubgraphImpl], padded: Padded) -> None:
    """Set the masks of a minibatch and its layers: which rows and edges are no padding."""
    edges = {_name(t): mask.split_with_sizes(list(padded.sizes.edges[t])) for t, mask in padded.edge_mask.items()}
    for hop, layer in enumerate(reversed(layers)):
        rows = layer.original_row_node_ids
        if isinstance(rows, dict):
            layer.row_mask = {t: padded.node_mask[t][: nodes.numel()] for t, nodes in rows.items()}
            layer.edge_mask = {t: parts[hop] for t, parts in edges.items()}
        else:
            assert rows is not None
            layer.row_mask = padded.node_mask[HOMOGENEOUS_NODE][: rows.numel()]
            layer.edge_mask = edges[_name(HOMOGENEOUS_EDGE)][hop]
    minibatch.node_mask, minibatch.padding = layers[0].row_mask, padded


def _layer(
    csc: dict[str, CSCFormatBase],
    columns: dict[str, Tensor],
    rows: dict[str, Tensor],
    ids: dict[str, Tensor] | None,
    hetero: bool,
) -> SampledSubgraphImpl:
    if hetero:
        return SampledSubgraphImpl(csc, columns, rows, ids)
    name, node = _name(HOMOGENEOUS_EDGE), HOMOGENEOUS_NODE
    return SampledSubgraphImpl(csc[name], columns[node], rows[node], ids and ids[name])


_name = cache(etype_tuple_to_str)


def layer_by_layer(
    graph: object,
    fanouts: Sequence[Tensor],
    replace: bool,
    prob_name: str | None,
    deduplicate: bool,
    method: str,
    minibatch: MiniBatch,
) -> MiniBatch:
    """Sample each layer by a method of the graph, and number its nodes."""
    seeds = with_all_types(graph, minibatch._seed_nodes)
    layers: list[SampledSubgraphImpl] = []
    for fanout in reversed(fanouts):
        layers.insert(0, compacted(getattr(graph, method)(seeds, fanout, replace, prob_name), seeds, deduplicate))
        rows = layers[0].original_row_node_ids
        assert rows is not None
        seeds = rows
    minibatch.input_nodes, minibatch.sampled_subgraphs = seeds, layers
    return minibatch


def compacted(sampled: OneLayer, columns: Nodes, deduplicate: bool) -> SampledSubgraphImpl:
    """Number the rows of a layer, which are nodes of the graph."""
    number = unique_and_compact_csc_formats if deduplicate else compact_csc_format
    rows, csc = number(sampled.sampled_csc, columns)
    return SampledSubgraphImpl(csc, columns, rows, sampled.original_edge_ids)


def with_all_types(graph: Any, values: Nodes) -> Nodes:
    """Add empty tensors for the node types without seeds to nodes, or to their times."""
    if not isinstance(values, Mapping):
        return values
    some = next(iter(values.values()))
    return {ntype: values.get(ntype, some[:0]) for ntype in graph.node_type_to_id}
