"""Sampling of all layers of a minibatch by one call of the engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, NodeType
from manyhop.sampling import LaborSpec, NeighborSpec, NodeRequest, SampledSubgraph
from manyhop_dgl.samplers.keys import next_key
from manyhop_dgl.samplers.plan import columns_of, nodes_by_hop
from manyhop_graphbolt.graph.graph import FusedCSCSamplingGraph
from manyhop_graphbolt.graph.subgraph import CSCFormatBase, SampledSubgraphImpl
from manyhop_graphbolt.graph.topology import Topology, fanout_list
from manyhop_graphbolt.items.minibatch import MiniBatch
from manyhop_graphbolt.types import Nodes, as_given, etype_tuple_to_str


def fanout_tensors(fanouts: object) -> list[Tensor]:
    """Return ``[1]`` or ``[num_edge_types]`` integers per layer."""
    if not isinstance(fanouts, Sequence | Tensor) or isinstance(fanouts, str) or len(fanouts) == 0:
        raise InputError(f"Expected at least one fanout, one per layer, got {fanouts!r}. Pass a list of integers.")
    return [f if isinstance(f, Tensor) else torch.tensor(fanout_list(f)) for f in fanouts]


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


class Dependency(NamedTuple):
    """How the random numbers of layer-neighbour sampling depend on each other."""

    layer_dependency: bool
    batch_dependency: int


class AllLayers:
    """Samples all layers by one call of the engine, and cuts them apart."""

    def __init__(
        self,
        graph: FusedCSCSamplingGraph,
        fanouts: Sequence[Tensor],
        replace: bool,
        prob_name: str | None,
        dependency: Dependency | None,
    ) -> None:
        self.graph, self._fanouts, self._prob_name = graph, fanouts, prob_name
        self._replace, self._dependency = replace, dependency
        self._known: tuple[Topology, NeighborSpec | LaborSpec] | None = None

    def __getstate__(self) -> dict[str, object]:
        return vars(self) | {"_known": None}

    def arguments(self) -> dict[str, object]:
        """Return the arguments of sampling by name."""
        return {name: value for name, value in vars(self).items() if name != "_known"}

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
        spec: NeighborSpec | LaborSpec
        if self._dependency is None:
            spec = topology.spec(self._fanouts, replace=self._replace)
        else:
            spec = topology.layer_spec(self._fanouts, replace=self._replace, **self._dependency._asdict())
        self._known = topology, spec
        return self._known

    def request(self, seeds: Nodes, topology: Topology) -> NodeRequest:
        """Return the request for seed nodes."""
        return NodeRequest(key=next_key(), seeds=topology.seeds(seeds))

    def drawn(self, seeds: Nodes) -> tuple[Topology, SampledSubgraph]:
        """Return a sample around seed nodes, and the sampled topology."""
        topology, spec = self.current()
        request = self.request(seeds, topology)
        return topology, topology.sampler(spec, next(iter(request.seeds.values())).device).sample(request)

    def sample(self, seeds: Nodes) -> tuple[Nodes, list[SampledSubgraphImpl]]:
        """Return the input nodes and the layers of a sample around seed nodes."""
        topology, sample = self.drawn(seeds)
        (layers,) = layers_of([topology.by_type(sample)], with_ids=topology.has_original_edge_ids)
        rows = layers[0].original_row_node_ids
        assert rows is not None
        return rows, layers


def put_layers(minibatches: Sequence[MiniBatch], layers: Sequence[list[SampledSubgraphImpl]]) -> None:
    """Let each minibatch have its layers."""
    for minibatch, own in zip(minibatches, layers, strict=True):
        minibatch.input_nodes, minibatch.sampled_subgraphs = own[0].original_row_node_ids, own


def layers_of(samples: Sequence[SampledSubgraph], *, with_ids: bool) -> list[list[SampledSubgraphImpl]]:
    """Return the layers of samples whose hops expand all nodes so far, the input layer first."""
    num_nodes = [nodes_by_hop(sample) for sample in samples]
    indptrs = iter(columns_of(samples, num_nodes))
    return [_layers(*one, indptrs, with_ids) for one in zip(samples, num_nodes, strict=True)]


def _layers(
    sample: SampledSubgraph, num_nodes: list[dict[NodeType, int]], indptrs: Iterator[Tensor], with_ids: bool
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
