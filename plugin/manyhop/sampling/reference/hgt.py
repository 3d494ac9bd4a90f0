"""Numpy reference of the Heterogeneous Graph Transformer's sampling. Written for reading, not for speed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch

from manyhop.graph import EdgeType, Graph, NodeType
from manyhop.sampling.check import check_request, check_spec
from manyhop.sampling.contract import HGTSpec, NodeRequest, SampledSubgraph, num_hops
from manyhop.sampling.random import U64, Use, fold, make_key
from manyhop.sampling.reference import picks as picks
from manyhop.sampling.reference.sampler import Edges, Frontier, induce, planted, to_tensors

Budget = dict[int, float]
"""Node -> its budget, in the order of the nodes' first appearance."""


class ReferenceHGTSampler:
    """Samples layer by layer, with a budget per node type (arXiv 2003.01332, algorithms 1 and 2).

    A node's budget is the sum, over the sampled nodes that it is a neighbour of, of one over their number of
    neighbours. Each hop draws nodes of every type in proportion to the square of their budgets. The result has the
    edges among the sampled nodes. Columns longer than ``spec.max_neighbors`` are cut in both places.

    Its arguments and exceptions are those of :class:`manyhop.sampling.CPUHGTSampler`.
    """

    def __init__(self, graph: Graph, spec: HGTSpec) -> None:
        check_spec(graph, spec)
        self.graph = graph
        self.spec = spec

    def sample(self, request: NodeRequest) -> SampledSubgraph:
        """Sample around ``request.seeds``.

        Returns:
            The sample, with ``num_sampled_nodes`` per hop and ``num_sampled_edges`` ``None``.
        """
        graph, spec = self.graph, self.spec
        check_request(graph, spec, request)
        nodes = planted(graph, request.seeds)
        budgets: dict[NodeType, Budget] = {t: {} for t in graph.node_types}
        for hop in range(num_hops(spec.num_samples)):
            for index, edge_type in enumerate(graph.edge_types):
                self._add_to_budget(request, hop, index, edge_type, nodes, budgets[edge_type[0]])
            for index, node_type in enumerate(graph.node_types):
                key = make_key(Use.HGT_PICK, *request.key, hop, index)
                nodes[node_type].hop_begin.append(len(nodes[node_type].node))
                candidates = list(budgets[node_type])
                budget = np.array(list(budgets[node_type].values()), dtype=np.float64)
                cumw = np.cumsum(budget * budget)
                weight, k = np.diff(cumw, prepend=0.0), spec.num_samples[node_type][hop]
                for slot in picks.weighted(key, weight, picks.by_sums(cumw), k, replace=False):
                    nodes[node_type].find_or_add(candidates[slot], 0)
                    del budgets[node_type][candidates[slot]]
        return self._result(request, nodes)

    def _choose(self, key: U64, nodes: Frontier, i: int, d: int) -> picks.Positions:
        """Return the entries that count of the ``d`` entries in the column of local id ``i``."""
        node_key = fold(key, nodes.node[i])
        if nodes.copy[i] > 0:
            node_key = fold(node_key, nodes.copy[i])
        limit = self.spec.max_neighbors
        return picks.uniform(node_key, d, -1 if limit is None else limit, replace=False)

    def _add_to_budget(
        self,
        request: NodeRequest,
        hop: int,
        index: int,
        edge_type: EdgeType,
        nodes: Mapping[NodeType, Frontier],
        budget: Budget,
    ) -> None:
        """Add the neighbours, by one edge type, of the nodes that the hop before (or the seeds) added."""
        csc, src, dst = self.graph.csc[edge_type], nodes[edge_type[0]], nodes[edge_type[2]]
        key = make_key(Use.HGT_BUDGET, *request.key, hop, index)
        for i in range(dst.hop_begin[-1], len(dst.node)):
            begin, end = int(csc.colptr[dst.node[i]]), int(csc.colptr[dst.node[i] + 1])
            chosen = self._choose(key, dst, i, end - begin)
            for position in begin + chosen:
                neighbor = int(csc.row[position])
                if (0, neighbor) not in src.local:
                    budget[neighbor] = budget.get(neighbor, 0.0) + 1.0 / len(chosen)

    def _result(self, request: NodeRequest, nodes: Mapping[NodeType, Frontier]) -> SampledSubgraph:
        edges: dict[EdgeType, Edges] = {}
        for index, (t, csc) in enumerate(self.graph.csc.items()):
            choose = partial(self._choose, make_key(Use.HGT_EDGES, *request.key, index), nodes[t[2]])
            edges[t] = induce(csc, nodes[t[0]], nodes[t[2]], choose=choose)
        row, col, edge_id = to_tensors(self.graph, edges)
        return SampledSubgraph(
            node={t: torch.tensor(f.node, dtype=torch.int64) for t, f in nodes.items()},
            row=row,
            col=col,
            edge_id=edge_id,
            tree=None,
            num_sampled_nodes={t: f.per_hop() for t, f in nodes.items()},
            num_sampled_edges=None,
        )
