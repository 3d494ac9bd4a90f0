"""Numpy reference of layer-neighbour sampling: the definition of what a sample is. Written for reading."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.graph import CSC, EdgeType, Graph, NodeType
from manyhop.sampling.check import check_labor_spec, check_request
from manyhop.sampling.contract import LaborSpec, NodeRequest, SampledSubgraph, num_hops
from manyhop.sampling.reference import labor_picks as labor
from manyhop.sampling.reference.parts import Edges, excluded_positions, planted, to_tensors

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Picked = tuple[Ints, npt.NDArray[np.float32]]

CONVERGED = 10_000
"""Rounds end when the expected number of nodes falls by no more than this part of itself."""

UNIT = 2.0**30
"""What a node counts in the expected number, so that its sum is one of integers, whatever the order."""


class ReferenceLaborSampler:
    """Samples by LABOR (Balin and Catalyurek, "Layer-Neighbor Sampling", arXiv 2210.13339), by the sampling contract.

    Args:
        graph: the topology.
        spec: how to sample; the same for every request.

    Raises:
        InputError: the spec does not fit the graph, or a request does not fit the spec.
        GraphError: the spec needs weights, and the graph has none.
    """

    def __init__(self, graph: Graph, spec: LaborSpec) -> None:
        check_labor_spec(graph, spec)
        self.graph = graph
        self.spec = spec

    def sample(self, request: NodeRequest) -> SampledSubgraph:
        """Sample around ``request.seeds``."""
        graph, spec = self.graph, self.spec
        check_request(graph, spec, request)
        nodes = planted(graph, request.seeds)
        edges = {t: Edges() for t in graph.edge_types}
        weights: dict[EdgeType, list[np.float32]] = {t: [] for t in graph.edge_types}
        excluded = excluded_positions(graph, request.exclude)
        for hop in range(num_hops(spec.fanouts)):
            begin = {t: f.hop_begin[-1] if spec.expand == "new" else 0 for t, f in nodes.items()}
            end = {t: len(f.node) for t, f in nodes.items()}
            for edge_type in graph.edge_types:
                src, dst, found = nodes[edge_type[0]], nodes[edge_type[2]], edges[edge_type]
                before = len(found.row)
                frontier = range(begin[edge_type[2]], end[edge_type[2]])
                variates = labor.Variates.of(spec, request.key, hop, graph.node_types.index(edge_type[0]))
                picked = self._pick(edge_type, [dst.node[i] for i in frontier], spec.fanouts[edge_type][hop], variates)
                for i, (positions, weight) in zip(frontier, picked, strict=True):
                    for j, position in enumerate(positions.tolist()):
                        if position in excluded[edge_type]:
                            continue
                        found.row.append(src.find_or_add(int(graph.csc[edge_type].row[position]), 0))
                        found.col.append(i)
                        found.position.append(position)
                        weights[edge_type].append(weight[j])
                found.per_hop.append(len(found.row) - before)
            for t, f in nodes.items():
                f.hop_begin.append(end[t])
        row, col, edge_id = to_tensors(graph, edges)
        node: dict[NodeType, Tensor] = {t: torch.tensor(f.node, dtype=torch.int64) for t, f in nodes.items()}
        return SampledSubgraph(
            node=node,
            row=row,
            col=col,
            edge_id=edge_id,
            tree=None,
            num_sampled_nodes={t: f.per_hop() for t, f in nodes.items()},
            num_sampled_edges={t: e.per_hop for t, e in edges.items()},
            edge_weight={t: torch.tensor(np.array(w, np.float32)) for t, w in weights.items()}
            if spec.method == "poisson" and (spec.weighted or spec.importance != 0)
            else None,
        )

    def _pick(self, edge_type: EdgeType, frontier: Sequence[int], k: int, variates: labor.Variates) -> list[Picked]:
        """Return the stored positions of the edges picked for each frontier node, and their weights."""
        csc = self.graph.csc[edge_type]
        columns = [_Column(csc, node, weighted=self.spec.weighted) for node in frontier]
        if k == 0:
            return [(np.empty(0, np.int64), np.empty(0, np.float32))] * len(columns)
        if self.spec.method == "exact":
            picks = [labor.exact(variates(c.source), c.weight, k, replace=self.spec.replace) for c in columns]
            return [(c.begin + q, np.ones(q.size, np.float32)) for c, q in zip(columns, picks, strict=True)]
        if columns and columns[0].weight is None and self.spec.importance == 0:
            picks = []
            for c in columns:
                d = c.source.size
                taken = labor.poisson_equal(variates(c.source), d, k) if 0 <= k < d else np.ones(d, np.bool_)
                picks.append(np.flatnonzero(taken))
            return [(c.begin + q, np.ones(q.size, np.float32)) for c, q in zip(columns, picks, strict=True)]
        result = []
        for c, probability in zip(columns, self._probabilities(csc, columns, k), strict=True):
            taken = labor.poisson(variates(c.source), probability)
            result.append((c.begin + np.flatnonzero(taken), labor.edge_weights(c.a, probability, taken)))
        return result

    def _probabilities(self, csc: CSC, columns: Sequence[_Column], k: int) -> list[Floats]:
        """With which probability each entry of each column is picked."""
        for c in columns:
            c.k = c.n if k == -1 else k
            if c.weight is None:
                c.pi, c.c = np.ones(c.a.size), c.k / max(c.n, 1)
            else:
                c.pi = c.a
                c.c = labor.scale(c.a, c.total, c.pi, c.k, float(c.k))
        pi, before = np.ones(csc.num_src), 0
        for turn in range(self.spec.importance) if self.spec.importance >= 0 else count():
            factor = np.zeros(csc.num_src)
            for c in columns:
                counts = c.a > 0
                np.maximum.at(factor, c.source[counts], c.c * (c.pi if turn == 0 else np.ones(c.a.size))[counts])
            pi = pi * factor
            for c in columns:
                c.pi = pi[c.source]
                c.c = labor.scale(c.a, c.total, c.pi, c.k, c.c)
            expected = int(np.floor(np.minimum(pi, 1.0) * UNIT).astype(np.int64).sum())
            if turn > 0 and expected >= before - before // CONVERGED:
                break
            before = expected
        return [np.where(c.a > 0, 1.0 if c.k >= c.n else np.minimum(1.0, c.c * c.pi), 0.0) for c in columns]


class _Column:
    """The neighbours of a frontier node, and their probabilities."""

    def __init__(self, csc: CSC, node: int, *, weighted: bool) -> None:
        self.begin, end = int(csc.colptr[node]), int(csc.colptr[node + 1])
        self.source: Ints = csc.row[self.begin : end].long().numpy()
        self.weight: Floats | None = None
        self.a, self.total = np.ones(self.source.size), float(self.source.size)
        if weighted and csc.weight is not None:
            self.weight = csc.weight[self.begin : end].numpy()
            self.a, self.total = labor.shares(self.weight), 1.0
        self.n = int((self.a > 0).sum())
        self.k = 0
        self.pi, self.c = self.a, 0.0
