"""Sampling around seed edges, dressed as PyG wants it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

from manyhop.errors import InputError
from manyhop.graph import CSC, HOMOGENEOUS_EDGE, EdgeType, Graph
from manyhop.sampling import BatchKey, EdgeRequest, EdgeSampler, SampledSubgraph, Sampler
from manyhop_pyg._convert import Topology
from manyhop_pyg._spec import negative_spec


class SeedEdges:
    """Samples around seed edges of any type; what each kind of request needs is prepared once."""

    def __init__(self, topology: Topology, engine: Sampler, *, disjoint: bool) -> None:
        self._topology = topology
        self._engine = engine
        self._disjoint = disjoint
        self._samplers: dict[Any, tuple[EdgeSampler, NegativeSampling | None]] = {}

    def sample(
        self,
        index: EdgeSamplerInput,
        neg_sampling: NegativeSampling | None,
        key: BatchKey,
        times: tuple[Tensor, Tensor | None] | None,
        *,
        exclude_true: bool,
    ) -> tuple[SampledSubgraph, tuple[Any, ...]]:
        """The subgraph, with trees numbered by seed edge, and PyG's ``metadata``."""
        sampler = self.prepare(index.input_type, neg_sampling, exclude_true=exclude_true)
        if self._topology.node_time or self._topology.edge_time:
            if times is None:
                raise InputError("Temporal sampling needs a time for every seed edge: pass edge_label_time.")
        elif times is not None:
            raise InputError("Times of the seed edges were given, but the sampler has no times: pass time_attr.")
        out = sampler.sample(
            EdgeRequest(
                key=key,
                edge_type=sampler.edge_type,
                src=index.row.to(torch.int64),
                dst=index.col.to(torch.int64),
                time_max=None if times is None else times[0],
                time_min=None if times is None else times[1],
            )
        )
        num_pos = out.num_pos
        num_src = out.src_index.numel()
        if out.subgraph.tree is not None:  # trees of endpoints -> the seed edge each belongs to
            trees = out.subgraph.tree
            for node_type, tree in trees.items():
                trees[node_type] = tree % max(num_src, 1) % max(num_pos, 1)
        if out.dst_neg_index is not None:
            negatives = out.dst_neg_index.squeeze(1) if out.dst_neg_index.size(1) == 1 else out.dst_neg_index
            return out.subgraph, (index.input_id, out.src_index, out.dst_index, negatives, index.time)
        label, time = index.label, index.time
        if neg_sampling is not None:
            label = torch.ones(num_pos) if label is None else label
            label = torch.cat([label, label.new_zeros(num_src - num_pos, *label.shape[1:])])
            if time is not None and num_pos > 0:
                time = time[torch.arange(num_src) % num_pos]
        edge_label_index = torch.stack([out.src_index, out.dst_index])
        return out.subgraph, (index.input_id, edge_label_index, label, time)

    def prepare(
        self, input_type: EdgeType | None, neg_sampling: NegativeSampling | None, *, exclude_true: bool
    ) -> EdgeSampler:
        """The engine's sampler for one kind of request; ``input_type`` is ``None`` without types.

        Raises:
            InputError: an unknown node type, weights that do not fit, or negatives that cannot be drawn.
        """
        n = neg_sampling
        edge_type = HOMOGENEOUS_EDGE
        if self._topology.hetero:
            if input_type is None:
                raise InputError("Expected seed edges with an edge type, since the graph has types, got none.")
            edge_type = input_type
        cache_key: Any = (edge_type, exclude_true)
        if n is not None:
            cache_key += (n.mode, n.amount, id(n.src_weight), id(n.dst_weight))
        if cache_key not in self._samplers:
            graph = self._seed_graph(edge_type, exclude_true=exclude_true)
            negatives = negative_spec(n, exclude_true=exclude_true)
            weights = (None, None) if n is None else (n.src_weight, n.dst_weight)
            sampler = EdgeSampler(
                self._engine,
                graph,
                edge_type,
                negatives=negatives,
                src_weight=weights[0],
                dst_weight=weights[1],
                disjoint=self._disjoint,
            )
            self._samplers[cache_key] = sampler, n  # kept alive: the cache knows its tensors by id
        return self._samplers[cache_key][0]

    def _seed_graph(self, edge_type: EdgeType, *, exclude_true: bool) -> Graph:
        """The graph as seed edges see it: seeds may be of a type that has no edges, or that is sampled backward."""
        topology, graph = self._topology, self._topology.graph
        for end in (edge_type[0], edge_type[2]):
            if end not in graph.num_nodes:
                raise InputError(
                    f"Edge type {edge_type} uses the unknown node type '{end}'. The graph has: {list(graph.num_nodes)}."
                )
        if edge_type in graph.csc and not topology.backward:
            return graph
        if exclude_true:
            raise InputError(
                f"exclude_true_negatives=True needs the edges of type {edge_type} in the graph that is sampled, "
                "in forward direction."
            )
        empty = CSC(
            num_src=graph.num_nodes[edge_type[0]],
            colptr=torch.zeros(graph.num_nodes[edge_type[2]] + 1, dtype=torch.int64),
            row=torch.empty(0, dtype=torch.int32),
        )
        return Graph(num_nodes=graph.num_nodes, csc={edge_type: empty}, node_time=graph.node_time)
