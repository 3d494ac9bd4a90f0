"""Stages that sample: from seeds to the layers of a minibatch, the input layer first, by one call of the engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from manyhop.arguments import as_tensor, check_no_mask, flag, flags, integer
from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, NodeType
from manyhop.loading import next_key
from manyhop.sampling import Engine, LaborSpec, NeighborSpec, NodeRequest
from manyhop.sampling import SampledSubgraph as Sample
from manyhop_dgl.samplers.arguments import draw
from manyhop_dgl.samplers.plan import columns_of, nodes_by_hop
from manyhop_graphbolt.graph.graph import FusedCSCSamplingGraph
from manyhop_graphbolt.graph.layers import compact_csc_format, fanout_tensors, unique_and_compact
from manyhop_graphbolt.graph.topology import Topology
from manyhop_graphbolt.items.minibatch import MiniBatch
from manyhop_graphbolt.items.sampler import UNSIGNED
from manyhop_graphbolt.stages.stage import MiniBatchTransformer, check_hints
from manyhop_graphbolt.types import (
    CSCFormatBase,
    Nodes,
    Pipe,
    SampledSubgraph,
    SampledSubgraphImpl,
    as_given,
    by_type,
    ends_of,
    etype_tuple_to_str,
    functional_datapipe,
)


def checked_graph(graph: object, prob_name: object) -> FusedCSCSamplingGraph:
    """Return the graph; raise InputError unless it can be sampled, and ``prob_name`` can name an attribute."""
    if not isinstance(graph, FusedCSCSamplingGraph):
        advice = " Pass gb.from_dglgraph(g)." if hasattr(graph, "canonical_etypes") else ""
        raise InputError(f"Expected a FusedCSCSamplingGraph, got a {type(graph).__name__}.{advice}")
    if prob_name is not None and not isinstance(prob_name, str):
        raise InputError(
            f"Expected prob_name as the name of an edge attribute, got a {type(prob_name).__name__}. Add it to the "
            "graph by add_edge_attribute(name, values), and pass its name."
        )
    return graph


def put_layers(minibatches: Sequence[MiniBatch], layers: Sequence[list[SampledSubgraphImpl]]) -> None:
    """Let each minibatch have its layers."""
    for minibatch, own in zip(minibatches, layers, strict=True):
        minibatch.input_nodes, minibatch.sampled_subgraphs = own[0].original_row_node_ids, own


def layers_of(samples: Sequence[Sample], *, with_ids: bool) -> list[list[SampledSubgraphImpl]]:
    """Return the layers of samples whose hops expand all nodes so far, the input layer first."""
    num_nodes = [nodes_by_hop(sample) for sample in samples]
    indptrs = iter(columns_of(samples, num_nodes))
    return [_layers(*one, indptrs, with_ids) for one in zip(samples, num_nodes, strict=True)]


def _layers(
    sample: Sample, num_nodes: list[dict[NodeType, int]], indptrs: Iterator[Tensor], with_ids: bool
) -> list[SampledSubgraphImpl]:
    edges = sample.num_sampled_edges
    assert edges is not None
    hops: dict[str | None, Iterator[tuple[Any, ...]]] = {}
    for edge_type, sizes in edges.items():
        parts = sample.row[edge_type], sample.edge_id[edge_type] if with_ids else None
        rows, ids = [repeat(None) if part is None else part.unsafe_split_with_sizes(sizes) for part in parts]
        name = None if edge_type == HOMOGENEOUS_EDGE else _name(edge_type)
        hops[name] = zip([next(indptrs) for _ in sizes], rows, ids, strict=False)
    by_hop = [{None if t == HOMOGENEOUS_NODE else t: sample.node[t][:n] for t, n in ends.items()} for ends in num_nodes]
    columns, *others = map(as_given, by_hop)
    layers: list[SampledSubgraphImpl] = []
    for nodes in others:
        csc, ids_of = {}, {}
        for kind, hop in hops.items():
            indptr, row, ids_of[kind] = next(hop)
            csc[kind] = CSCFormatBase.trusted(indptr, row)
        layers.insert(0, SampledSubgraphImpl(as_given(csc), columns, nodes, as_given(ids_of) if with_ids else None))
        columns = nodes
    return layers


_name = cache(etype_tuple_to_str)
_HINTS = ("overlap_fetch", "num_gpu_cached_edges", "gpu_cache_threshold", "cooperative", "asynchronous")


def begin_nodes(minibatch: MiniBatch) -> tuple[Nodes, Nodes | None]:
    """Return the nodes that sampling begins with, and their times (``None`` without a ``timestamp``).

    Sets ``compacted_seeds``, the positions of the seeds among these nodes. Seed nodes are used unchanged, repetitions
    included, so that the last layer has a column for each; the ends of seed edges are used once each. With times, all
    repetitions are separate nodes.
    """
    if not isinstance(minibatch, MiniBatch):
        raise InputError(
            f"Expected a MiniBatch to sample for, got a {type(minibatch).__name__}. Name the items of the ItemSet: "
            "ItemSet(nodes, names='seeds')."
        )
    timestamp = getattr(minibatch, "timestamp", None)
    if minibatch.seeds is None:
        raise InputError("Expected a minibatch with seeds, got one without. Name the items of the ItemSet so.")
    seeds, given_times = by_type(minibatch.seeds), by_type(timestamp)
    ends: dict[str | None, dict[tuple[str | None, int], Tensor]] = {}
    """Node type -> (type of seeds, 0 or 1: which end of links) -> nodes."""
    times: dict[str | None, list[Tensor]] = {}
    for kind, given in seeds.items():
        ids = seeds[kind] = _checked_seeds(given, "seeds" if kind is None else f"seeds of type '{kind}'")
        own = given_times.get(kind, given_times.get(None))
        own = None if own is None else _of_all(own, len(ids))
        typed_links = ids.dim() == 2 and kind is not None
        for i, ntype in enumerate(ends_of(kind) if typed_links else [kind]):
            ends.setdefault(ntype, {})[kind, i] = ids[:, i] if typed_links else ids.reshape(-1)
            if own is not None:
                times.setdefault(ntype, []).append(own if typed_links else own.repeat_interleave(ids.dim()))
    nodes, places = dict[str | None, Tensor](), dict[tuple[str | None, int], Tensor]()
    for ntype, by_end in ends.items():
        parts, (kind, _) = list(by_end.values()), next(iter(by_end))
        if timestamp is None and (len(parts) > 1 or seeds[kind].dim() == 2):
            nodes[ntype], positions = unique_and_compact(parts)
        else:
            ids = nodes[ntype] = parts[0] if len(parts) == 1 else torch.cat(parts)
            every = torch.arange(ids.numel(), dtype=parts[0].dtype, device=ids.device)
            positions = torch.split(every, [part.numel() for part in parts])
        places |= zip(by_end, positions, strict=True)
    compacted = {
        kind: torch.stack([places[kind, 0], places[kind, 1]], dim=1)
        if (kind, 1) in places
        else places[kind, 0].view(ids.shape)
        for kind, ids in seeds.items()
    }
    minibatch.compacted_seeds = as_given(compacted)
    if timestamp is None:
        return as_given(nodes), None
    return as_given(nodes), as_given({ntype: torch.cat(times.get(ntype, [ids[:0]])) for ntype, ids in nodes.items()})


def _checked_seeds(given: object, what: str) -> Tensor:
    ids = as_tensor(what, given)
    if ids.dim() != 1 and (ids.dim() != 2 or ids.shape[1] != 2):
        raise InputError(
            f"Expected {what} of shape [n] (nodes) or [n, 2] (edges), got {list(ids.shape)}. Cut hyperlinks into pairs "
            "of nodes."
        )
    check_no_mask(what, ids)
    if ids.is_floating_point() or ids.is_complex():
        raise InputError(f"Expected {what} as ids, got {ids.dtype}.")
    return ids.long() if ids.dtype in UNSIGNED else ids


def _of_all(given: object, num_seeds: int) -> Tensor:
    """Repeat the times of positive pairs for the negative pairs that follow."""
    times = as_tensor("timestamp", given)
    number = times.size(0) if times.dim() else 0
    if times.dim() != 1 or num_seeds % max(1, number):
        raise InputError(
            f"Expected a time for each seed or each positive pair, got {list(times.shape)} for {num_seeds} seeds."
        )
    if number in (0, num_seeds):
        return times
    return torch.cat((times, times.repeat_interleave(num_seeds // number - 1)))


@functional_datapipe("sample_subgraph")
class SubgraphSampler(MiniBatchTransformer):
    """The base of samplers. A subclass defines :meth:`sample_subgraphs`. Functional name: ``sample_subgraph``.

    Args:
        datapipe: minibatches with ``seeds``.
    """

    def __init__(self, datapipe: Pipe) -> None:
        if hasattr(self, "sampling_stages"):
            raise InputError(
                f"Expected {type(self).__name__} to define sample_subgraphs, got sampling_stages. Sample all layers in "
                "sample_subgraphs."
            )
        super().__init__(datapipe, self._sample)

    def sample_subgraphs(self, seeds: Nodes, seeds_timestamp: Nodes | None) -> tuple[Nodes, Sequence[SampledSubgraph]]:
        """Sample around nodes.

        Args:
            seeds: ``[num_nodes]``, by node type or not.
            seeds_timestamp: their times, ``[num_nodes]``; ``None`` without.

        Returns:
            The input nodes, and the layers, the input layer first.
        """
        raise NotImplementedError(
            f"Expected {type(self).__name__} to define sample_subgraphs, got a class without. Sample all layers there."
        )

    def _sample(self, minibatch: MiniBatch) -> MiniBatch:
        minibatch.input_nodes, minibatch.sampled_subgraphs = self.sample_subgraphs(*begin_nodes(minibatch))
        return minibatch


@functional_datapipe("sample_neighbor")
class NeighborSampler(SubgraphSampler):
    """Samples neighbours of all nodes of a layer, layer by layer. Functional name: ``sample_neighbor``.

    Args:
        datapipe: minibatches with ``seeds``.
        graph: a :class:`FusedCSCSamplingGraph`.
        fanouts: edges per node and layer, the input layer first: an integer, ``[1]`` (counts for all edge types
            together) or ``[num_edge_types]`` integers; -1: all.
        replace: sample with replacement.
        prob_name: edge attribute with weights (floating-point) or a mask (bool) of the edges.
        deduplicate: only ``True``: each node of a layer has one row.
        hints: ``overlap_fetch``, ``asynchronous``, ``num_gpu_cached_edges``, ``gpu_cache_threshold``, ``cooperative``
            of GraphBolt are validated and have no effect; ``cooperative=True`` raises an error.

    Raises:
        InputError: (also at a batch) an argument does not make sense.
    """

    _dependency: dict[str, int] | None = None
    """How the random numbers of layer-neighbour sampling depend on each other."""

    def __init__(
        self,
        datapipe: Pipe,
        graph: object,
        fanouts: Sequence[int | Tensor],
        replace: bool = False,
        prob_name: str | None = None,
        deduplicate: bool = True,
        **hints: bool | int,
    ) -> None:
        check_hints(_HINTS, **hints)
        flags(replace=replace, deduplicate=deduplicate)
        if not deduplicate:
            raise InputError("Expected deduplicate=True, got False. Leave it out: each node of a layer has one row.")
        super().__init__(datapipe)
        self.graph, self.fanouts = checked_graph(graph, prob_name), fanout_tensors(fanouts)
        self._replace, self._prob_name = replace, prob_name
        self._known: tuple[Topology, NeighborSpec | LaborSpec] | None = None

    def __getstate__(self) -> dict[str, object]:
        return vars(self) | {"_known": None}

    def current(self) -> tuple[Topology, NeighborSpec | LaborSpec]:
        """Return the current topology of the graph, and its spec."""
        known = self._known
        if known is not None and known[0] is self.graph.topology(fused=known[0].fused, probs_name=self._prob_name):
            return known
        topology = self.graph.topology_for(self.fanouts, self._prob_name)
        spec: NeighborSpec | LaborSpec
        if self._dependency is None:
            spec = topology.spec(self.fanouts, replace=self._replace)
        else:
            spec = topology.layer_spec(self.fanouts, replace=self._replace, **self._dependency)
        self._known = topology, spec
        return self._known

    def request(self, seeds: Nodes) -> tuple[Topology, Engine, NodeRequest]:
        """Return the request for all layers around seed nodes, the engine that samples it, and their topology."""
        topology, spec = self.current()
        request = NodeRequest(key=next_key(draw), seeds=topology.seeds(seeds))
        return topology, topology.sampler(spec, next(iter(request.seeds.values())).device), request

    def sample_subgraphs(self, seeds: Nodes, seeds_timestamp: Nodes | None) -> tuple[Nodes, Sequence[SampledSubgraph]]:
        """Sample all layers around ``seeds``; their times are ignored."""
        topology, engine, request = self.request(seeds)
        sample = engine.sample(request)
        (layers,) = layers_of([topology.by_type(sample)], with_ids=topology.has_original_edge_ids)
        rows = layers[0].original_row_node_ids
        assert rows is not None
        return rows, layers


@functional_datapipe("sample_layer_neighbor")
class LayerNeighborSampler(NeighborSampler):
    """Samples neighbours that the nodes of a layer share. Functional name: ``sample_layer_neighbor``.

    By appendix A.3 of arXiv 2210.13339: the same number per node as :class:`NeighborSampler`.

    Args:
        datapipe: see :class:`NeighborSampler`, also for ``graph``, ``fanouts``, ``prob_name``, ``deduplicate`` and
            ``hints``.
        replace: sample with replacement; only on a CPU.
        layer_dependency: use the same random numbers in all layers, which then share more nodes.
        batch_dependency: number of minibatches over which the random numbers change, so that consecutive minibatches
            share more nodes. 1: new numbers for each minibatch; 0: the same for all.

    Raises:
        InputError: (also at a batch) an argument does not make sense.
    """

    def __init__(
        self,
        datapipe: Pipe,
        graph: object,
        fanouts: Sequence[int | Tensor],
        replace: bool = False,
        prob_name: str | None = None,
        deduplicate: bool = True,
        layer_dependency: bool = False,
        batch_dependency: int = 1,
        **hints: bool | int,
    ) -> None:
        self._dependency = {
            "layer_dependency": flag("layer_dependency", layer_dependency),
            "batch_dependency": integer("batch_dependency", batch_dependency, 0),
        }
        super().__init__(datapipe, graph, fanouts, replace, prob_name, deduplicate, **hints)


@functional_datapipe("temporal_sample_neighbor")
class TemporalNeighborSampler(SubgraphSampler):
    """Samples neighbours earlier than their seed. Functional name: ``temporal_sample_neighbor``.

    The time of a seed is its entry in ``minibatch.timestamp``. Each edge has its own row.

    Args:
        datapipe: minibatches with ``timestamp``.
        graph: a :class:`FusedCSCSamplingGraph`.
        fanouts: see :class:`NeighborSampler`, also for ``replace`` and ``prob_name``.
        node_timestamp_attr_name: node attribute with the times of nodes.
        edge_timestamp_attr_name: edge attribute with the times of edges.

    Raises:
        InputError: (at a batch) the minibatch has no ``timestamp``.
    """

    def __init__(
        self,
        datapipe: Pipe,
        graph: object,
        fanouts: Sequence[int | Tensor],
        replace: bool = False,
        prob_name: str | None = None,
        node_timestamp_attr_name: str | None = None,
        edge_timestamp_attr_name: str | None = None,
    ) -> None:
        super().__init__(datapipe)
        self.graph = checked_graph(graph, prob_name)
        self.fanouts = fanout_tensors(fanouts)
        self._arguments = (replace, prob_name, node_timestamp_attr_name, edge_timestamp_attr_name)

    def sample_subgraphs(self, seeds: Nodes, seeds_timestamp: Nodes | None) -> tuple[Nodes, Sequence[SampledSubgraph]]:
        """Sample around ``seeds``, from before their times."""
        if seeds_timestamp is None:
            raise InputError(
                "Expected minibatches with a timestamp for temporal sampling, got one without. Name an item of the "
                "ItemSet 'timestamp'."
            )
        seeds, times = self._with_all_types(seeds), self._with_all_types(seeds_timestamp)
        layers: list[SampledSubgraph] = []
        for fanout in reversed(self.fanouts):
            sampled = self.graph.temporal_sample_neighbors(seeds, times, fanout, *self._arguments)
            rows, csc, times = compact_csc_format(sampled.sampled_csc, seeds, times)
            layers.insert(0, SampledSubgraphImpl(csc, seeds, rows, sampled.original_edge_ids))
            seeds = rows
        return seeds, layers

    def _with_all_types(self, values: Nodes) -> Nodes:
        """Add empty tensors for the node types without seeds to nodes, or to their times."""
        if not isinstance(values, dict):
            return values
        none = next(iter(values.values()))[:0]
        return {ntype: values.get(ntype, none) for ntype in self.graph.node_type_to_id or {}}
