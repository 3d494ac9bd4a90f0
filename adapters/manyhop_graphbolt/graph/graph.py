"""The graph that GraphBolt's samplers work on: one CSC for all node and edge types, and sampling of one layer."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from manyhop.arguments import as_tensor, integer
from manyhop.errors import InputError
from manyhop.features import is_pinned
from manyhop.graph import time_key
from manyhop.memory.stores import TopologyPlace
from manyhop.sampling import LaborSpec, NeighborSpec, NodeRequest
from manyhop.sampling.random import Use, below, draw, make_key
from manyhop.system.arrays import describe
from manyhop.system.progress import to_device
from manyhop_dgl.samplers.keys import next_key
from manyhop_graphbolt.features.tensors import pinned
from manyhop_graphbolt.graph.subgraph import CSCFormatBase, SampledSubgraphImpl, split_pairs
from manyhop_graphbolt.graph.topology import ATTRIBUTES, TENSORS, FusedCSC, Topology, fanout_list, tables_of
from manyhop_graphbolt.types import (
    ORIGINAL_EDGE_ID,
    Fanout,
    Nodes,
    as_given,
    by_type,
    etype_str_to_tuple,
    etype_tuple_to_str,
    missing,
)


class FusedCSCSamplingGraph(FusedCSC):
    """A graph whose edges, of all types in one table, are grouped by destination.

    Nodes of one type have consecutive ids.

    :func:`fused_csc_sampling_graph` and :func:`from_dglgraph` build it. The tensors can be replaced and written to at
    any time; the tables that samplers use follow when they are next requested. In a loader, draws of its methods are a
    function of the minibatch's key; otherwise, of torch's default generator.

    Attributes:
        csc_indptr: see :func:`fused_csc_sampling_graph`, also for ``indices``, ``node_type_offset``, ``type_per_edge``,
            ``node_type_to_id``, ``edge_type_to_id``, ``node_attributes`` and ``edge_attributes``.
        topology_place: where loaders on GPUs read the topology; ``None``: where each of them decides.
    """

    def __getattr__(self, name: str) -> Any:
        raise missing(type(self).__name__, name)

    def topology(
        self,
        *,
        fused: bool = False,
        probs_name: str | None = None,
        node_time: str | None = None,
        edge_time: str | None = None,
    ) -> Topology:
        """Return the graph for the engine's samplers. It is cached until one of its tensors changes.

        Args:
            fused: one table for all edge types, for fanouts that count for all of them together.
            probs_name: edge attribute ``[num_edges]``: floating-point probabilities, or a mask.
            node_time: node attribute ``[num_nodes]`` with times.
            edge_time: edge attribute ``[num_edges]`` with times.

        Raises:
            GraphError: tensors that contradict each other; an attribute that is missing or of a wrong dtype or length.
        """
        fused = fused and self.is_heterogeneous
        attributes = (self.node_attribute(node_time), self.edge_attribute(edge_time))
        parts = (self.csc_indptr, self.indices, self.node_type_offset, self.type_per_edge, *attributes)
        names = (tuple((self.node_type_to_id or {}).items()), tuple((self.edge_type_to_id or {}).items()))
        key = (fused, node_time, edge_time, names)
        tables = self._cache.get(("tables", key), parts, lambda: tables_of(self, fused, node_time, edge_time))
        more = (self.edge_attribute(probs_name), (self.edge_attributes or {}).get(ORIGINAL_EDGE_ID))
        make = partial(Topology, self, tables, fused=fused, probs_name=probs_name)
        topology: Topology = self._cache.get(("topology", key, probs_name), (*parts, *more), make)
        return topology

    def topology_for(self, fanouts: Sequence[Fanout], probs_name: str | None = None, **times: str | None) -> Topology:
        """Return the topology for fanouts: a fused one if a fanout counts for all edge types together.

        Args:
            fanouts: per layer an integer, or ``[1]`` or ``[num_edge_types]`` integers.
            probs_name: see :meth:`topology`, also for ``node_time`` and ``edge_time`` of ``times``, and errors.
        """
        hops = [fanout_list(fanout) for fanout in fanouts]
        several = self.is_heterogeneous and len(self.edge_types_by_id()) > 1
        fused = several and any(len(hop) == 1 and hop[0] > 0 for hop in hops)
        return self.topology(fused=fused, probs_name=probs_name, **times)

    def sample_neighbors(
        self, nodes: Nodes, fanouts: Fanout, replace: bool = False, probs_name: str | None = None
    ) -> SampledSubgraphImpl:
        """Sample in-edges of some nodes.

        Args:
            nodes: ``[n]`` nodes, by node type or not. Nodes that occur twice are sampled for twice.
            fanouts: ``[1]``: edges per node, of all types together; ``[num_edge_types]``: edges per node and
                edge type, by type id. -1 is all.
            replace: sample with replacement.
            probs_name: edge attribute: weights in proportion to which edges are drawn, or a mask that selects
                edges.

        Returns:
            A subgraph with a column per node, whose rows are nodes of the graph.

        Raises:
            InputError: arguments that do not fit the graph.
            GraphError: the attribute is missing, or of a wrong dtype or length.
        """
        topology = self.topology_for([fanouts], probs_name)
        return self._sampled(topology, topology.spec([fanouts], replace=replace), nodes)

    def sample_layer_neighbors(
        self, nodes: Nodes, fanouts: Fanout, replace: bool = False, probs_name: str | None = None
    ) -> SampledSubgraphImpl:
        """Sample in-edges of some nodes so that nodes share their neighbours (arXiv 2210.13339).

        Arguments, result and errors are like in :meth:`sample_neighbors`.
        """
        topology = self.topology_for([fanouts], probs_name)
        return self._sampled(topology, topology.layer_spec([fanouts], replace=replace), nodes)

    def temporal_sample_neighbors(
        self,
        nodes: Nodes,
        input_nodes_timestamp: Nodes,
        fanouts: Fanout,
        replace: bool = False,
        probs_name: str | None = None,
        node_timestamp_attr_name: str | None = None,
        edge_timestamp_attr_name: str | None = None,
    ) -> SampledSubgraphImpl:
        """Sample edges into nodes: the time of the edge and of its source must be earlier than the node's time.

        Args:
            nodes: see :meth:`sample_neighbors`, also for ``fanouts``, ``replace``, ``probs_name``, result and errors.
            input_nodes_timestamp: ``[n]`` time of each node; by node type or not.
            node_timestamp_attr_name: node attribute with times.
            edge_timestamp_attr_name: edge attribute with times.
        """
        times = {"node_time": node_timestamp_attr_name, "edge_time": edge_timestamp_attr_name}
        if not any(times.values()):
            return self.sample_neighbors(nodes, fanouts, replace, probs_name)
        topology = self.topology_for([fanouts], probs_name, **times)
        spec = topology.spec([fanouts], replace=replace, temporal=True)
        return self._sampled(topology, spec, nodes, _latest(topology, nodes, input_nodes_timestamp))

    def sample_negative_edges_uniform(self, edge_type: str | None, node_pairs: Tensor, negative_ratio: int) -> Tensor:
        """Draw destinations for each edge, uniformly among all nodes of their type. Some pairs may be true edges.

        Args:
            edge_type: ``"source:relation:destination"``; ``None`` for a homogeneous graph.
            node_pairs: ``[n, 2]``.
            negative_ratio: how many per edge.

        Returns:
            ``[n * (1 + negative_ratio), 2]``, the given pairs, then those drawn, each source ``negative_ratio`` times.

        Raises:
            InputError: arguments that do not fit the graph.
        """
        integer("negative_ratio", negative_ratio, 1)
        total = self.total_num_nodes
        if edge_type is not None and self.is_heterogeneous:
            dst_type, counts = etype_str_to_tuple(edge_type)[2], self.num_nodes
            if not isinstance(counts, dict) or dst_type not in counts:
                raise InputError(f"Expected an edge type of {list(self.edge_type_to_id or ())}, got {edge_type!r}.")
            total = counts[dst_type]
        src, _ = split_pairs(node_pairs)
        count = src.numel() * negative_ratio
        if count and total < 1:
            raise InputError(f"Expected nodes to draw destinations from, got none of edge type {edge_type!r}.")
        key = next_key()
        drawn = below(draw(make_key(Use.NEGATIVE_DST, *key), np.arange(count)), total)
        dst = torch.from_numpy(drawn).to(src)
        return torch.cat([node_pairs, torch.stack([src.repeat_interleave(negative_ratio), dst], 1)])

    def _sampled(
        self,
        topology: Topology,
        spec: NeighborSpec | LaborSpec,
        nodes: Nodes,
        latest: dict[str, Tensor] | None = None,
    ) -> SampledSubgraphImpl:
        """Sample one hop around seeds, on their device; rows are nodes of the graph."""
        seeds = topology.seeds(nodes)
        gpu = next((ids.device for ids in seeds.values() if ids.is_cuda), None)
        sample = topology.sampler(spec, gpu).sample(NodeRequest(key=next_key(), seeds=seeds, time_max=latest))
        sample = topology.by_type(sample)
        csc: dict[str | None, CSCFormatBase] = {}
        edge_ids: dict[str | None, Any] = {}
        for edge_type, row in sample.row.items():
            src, _, dst = edge_type
            count = (sample.num_sampled_nodes or {}).get(dst, [0])[0]
            degree = torch.bincount(sample.col[edge_type], minlength=count)
            indptr = torch.cat([degree.new_zeros(1), degree.cumsum(0)]).to(self.csc_indptr.dtype)
            name = etype_tuple_to_str(edge_type) if self.is_heterogeneous else None
            csc[name] = CSCFormatBase(indptr, sample.node[src][row].to(self.indices.dtype))
            edge_ids[name] = sample.edge_id[edge_type]
        ids = as_given(edge_ids) if topology.has_original_edge_ids else None
        return SampledSubgraphImpl(sampled_csc=as_given(csc), original_edge_ids=ids)

    def to(self, device: torch.device | str) -> Self:
        """Return a copy on another device, or in pinned memory (``"pinned"``)."""
        return self._map(lambda x: to_device(x, device, "edges"))

    def pin_memory_(self) -> Self:
        """Pin the memory of all tensors for GPUs to read, in place, or in copies below 64 MiB; return the graph.

        Raises:
            InputError: no GPU.
            CapacityError: the system does not let this process pin as much memory.
        """
        self.__dict__.update(self._map(pinned).__getstate__())
        return self

    def is_pinned(self) -> bool:
        """Return whether a GPU can read all tensors directly."""
        tensors = [tensor for name in (*TENSORS, *ATTRIBUTES) for tensor in by_type(getattr(self, name)).values()]
        return all(tensor.device.type == "cpu" and is_pinned(tensor) for tensor in tensors)

    def __repr__(self) -> str:
        parts = [f"csc_indptr={self.csc_indptr}", f"indices={self.indices}"]
        parts.append(f"total_num_nodes={self.total_num_nodes}, num_edges={self.num_edges}")
        names = ("node_type_offset", "type_per_edge", "node_type_to_id", "edge_type_to_id", *ATTRIBUTES)
        parts += [f"{name}={getattr(self, name)}" for name in names if getattr(self, name) is not None]
        title, text = type(self).__name__, ",\n".join(parts)
        return textwrap.indent(f"{title}({text},)", " " * (len(title) + 1)).strip()


SamplingGraph = FusedCSCSamplingGraph
"""GraphBolt's name of the base of graphs for sampling, of which there is one kind."""


def _latest(topology: Topology, nodes: Nodes, times: Nodes) -> dict[str, Tensor]:
    """Return the latest time key that edges may have, by seed: the last one before its time."""
    if isinstance(nodes, Mapping) != isinstance(times, Mapping):
        raise InputError("Expected nodes and times both by type, or both as one tensor, got one of each.")
    keys, given = {}, by_type(times)
    for name, ids in by_type(nodes).items():
        time = None if given.get(name) is None else as_tensor(f"times of the nodes {name or ''}", given[name])
        if time is None or list(time.shape) != [len(ids)] or time.is_complex():
            got = "none" if time is None else describe(time)
            raise InputError(f"Expected a time for each of the {len(ids)} nodes {name or ''}, got {got}.")
        if time.dtype.is_floating_point and not topology.floating_time:
            time = time.ceil().long()
        keys[name] = time_key(time, floating=bool(topology.floating_time)) - 1
    if topology.fused or None in keys:  # one table
        return {next(iter(topology.graph.num_nodes)): torch.cat(list(keys.values()))}
    return keys


torch.serialization.add_safe_globals(
    [FusedCSCSamplingGraph, TopologyPlace]
)  # a graph saved by torch.save loads with weights_only=True
