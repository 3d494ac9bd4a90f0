"""Numpy reference of neighbour sampling: it defines samples. Written for reading, not for speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.graph import CSC, EdgeType, Graph, NodeType
from manyhop.sampling.check import check_request, check_spec
from manyhop.sampling.contract import BatchKey, NeighborSpec, NodeRequest, SampledSubgraph, add_reverses, num_hops
from manyhop.sampling.random import U64, Use, fold, make_key
from manyhop.sampling.reference import picks as picks


class Frontier:
    """The nodes of one type that a batch holds so far, in order, with their trees."""

    def __init__(self) -> None:
        self.node: list[int] = []
        self.tree: list[int] = []
        self.copy: list[int] = []  # c for the c-th further copy of a seed, else 0
        self.local: dict[tuple[int, int], int] = {}  # (tree, node) -> local id of its first copy
        self.hop_begin = [0]  # local id of each hop's first new node
        self._copies: dict[tuple[int, int], int] = {}  # (tree, node) -> number of its copies

    def add_seed(self, node: int, tree: int) -> None:
        """Append a seed, also a duplicate."""
        self.copy.append(self._copies.get((tree, node), 0))
        self._copies[tree, node] = self.copy[-1] + 1
        self.local.setdefault((tree, node), len(self.node))
        self.node.append(node)
        self.tree.append(tree)

    def find_or_add(self, node: int, tree: int) -> int:
        """Return local id of a neighbour; appends it where it first occurs."""
        if (tree, node) not in self.local:
            self.local[tree, node] = len(self.node)
            self.node.append(node)
            self.tree.append(tree)
            self.copy.append(0)
        return self.local[tree, node]

    def per_hop(self) -> list[int]:
        """Return ``[num_hops + 1]``: seeds, then nodes added by each hop."""
        ends = [*self.hop_begin[1:], len(self.node)]
        return [end - begin for begin, end in zip(self.hop_begin, ends, strict=True)]


def planted(graph: Graph, seeds: Mapping[NodeType, Tensor]) -> dict[NodeType, Frontier]:
    """Return the nodes of a batch that begins with seeds and has no trees, by type."""
    nodes = {t: Frontier() for t in graph.node_types}
    for node_type, ids in seeds.items():
        for seed in ids.tolist():
            nodes[node_type].add_seed(seed, 0)
    return nodes


class Edges:
    """The sampled edges of one type, in order."""

    def __init__(self) -> None:
        self.row: list[int] = []
        self.col: list[int] = []
        self.position: list[int] = []
        self.weight: list[float] = []
        self.per_hop: list[int] = []


def excluded_positions(graph: Graph, exclude: Mapping[EdgeType, Tensor] | None) -> dict[EdgeType, set[int]]:
    """Return stored positions of the edges of each type that a request excludes by the user's ids."""
    positions: dict[EdgeType, set[int]] = {t: set() for t in graph.edge_types}
    for t, ids in (exclude or {}).items():
        perm = graph.csc[t].perm
        edge_id = torch.arange(graph.csc[t].num_edges) if perm is None else perm.long()
        positions[t] = set(torch.isin(edge_id, ids).nonzero()[:, 0].tolist())
    return positions


def induce(
    csc: CSC,
    src: Frontier,
    dst: Frontier,
    excluded: Set[int] = frozenset(),
    choose: Callable[[int, int], Iterable[int]] | None = None,
) -> Edges:
    """Return the edges of a type among the nodes of the batch: destinations by local id, columns in stored order.

    Args:
        choose: ``choose(i, d)`` returns the entries that count in the column of local id ``i``; ``None``: all.
    """
    found = Edges()
    for i, (node, tree) in enumerate(zip(dst.node, dst.tree, strict=True)):
        begin, end = int(csc.colptr[node]), int(csc.colptr[node + 1])
        for entry in range(end - begin) if choose is None else choose(i, end - begin):
            position = begin + int(entry)
            j = src.local.get((tree, int(csc.row[position])))
            if j is not None and position not in excluded:
                found.row.append(j)
                found.col.append(i)
                found.position.append(position)
    return found


def to_tensors(
    graph: Graph, edges: Mapping[EdgeType, Edges]
) -> tuple[dict[EdgeType, Tensor], dict[EdgeType, Tensor], dict[EdgeType, Tensor | None]]:
    """Return ``row``, ``col`` and ``edge_id`` of a result."""
    row: dict[EdgeType, Tensor] = {}
    col: dict[EdgeType, Tensor] = {}
    edge_id: dict[EdgeType, Tensor | None] = {}
    for t, e in edges.items():
        row[t], col[t] = torch.tensor([e.row, e.col], dtype=torch.int64)
        position = torch.tensor(e.position, dtype=torch.int64)
        perm = graph.csc[t].perm
        edge_id[t] = position if perm is None else perm[position].long()
    return row, col, edge_id


Ints = npt.NDArray[np.int64]
Picked = tuple[Ints, npt.NDArray[np.float32]]
"""Stored positions of the edges that a node picks, and their weights."""
Times = tuple[int | None, int]
"""Time limits of a tree: earliest and latest."""


class ReferenceSampler:
    """Samples neighbours by the letter of the contract.

    Its arguments and exceptions are those of :class:`manyhop.sampling.CPUSampler`.
    """

    def __init__(self, graph: Graph, spec: NeighborSpec) -> None:
        check_spec(graph, spec)
        self.graph = graph
        self.spec = spec

    def sample(self, request: NodeRequest) -> SampledSubgraph:
        """Sample around ``request.seeds``."""
        graph, spec = self.graph, self.spec
        check_request(graph, spec, request)
        nodes = {t: Frontier() for t in graph.node_types}
        edges = {t: Edges() for t in graph.edge_types}
        tree_time = self._plant(request, nodes)
        excluded = excluded_positions(graph, request.exclude)
        for hop in range(num_hops(spec.fanouts)):
            begin = {t: f.hop_begin[-1] if spec.expand == "new" else 0 for t, f in nodes.items()}
            end = {t: len(f.node) for t, f in nodes.items()}
            for index, edge_type in enumerate(graph.edge_types):
                src, dst, found = nodes[edge_type[0]], nodes[edge_type[2]], edges[edge_type]
                before, row = len(found.row), graph.csc[edge_type].row
                frontier = range(begin[edge_type[2]], end[edge_type[2]])
                picked = self._picks(request.key, hop, index, dst, frontier, tree_time)
                for i, (positions, weights) in zip(frontier, picked, strict=True):
                    for position, weight in zip(positions.tolist(), weights.tolist(), strict=True):
                        if position in excluded[edge_type]:
                            continue
                        found.row.append(src.find_or_add(int(row[position]), dst.tree[i]))
                        found.col.append(i)
                        found.position.append(position)
                        found.weight.append(weight)
                found.per_hop.append(len(found.row) - before)
            for t, f in nodes.items():
                f.hop_begin.append(end[t])
        return self._result(nodes, edges, excluded)

    def _plant(self, request: NodeRequest, nodes: Mapping[NodeType, Frontier]) -> list[Times]:
        """Add the seeds; returns each tree's (earliest, latest) time key."""
        tree_time: list[Times] = []
        tree = 0
        for node_type, seeds in request.seeds.items():
            for i, seed in enumerate(seeds.tolist()):
                nodes[node_type].add_seed(seed, tree if self.spec.disjoint else 0)
                tree += 1
                if request.time_max is not None:
                    t_min = None if request.time_min is None else int(request.time_min[node_type][i])
                    tree_time.append((t_min, int(request.time_max[node_type][i])))
        return tree_time

    def _picks(
        self, key: BatchKey, hop: int, index: int, dst: Frontier, frontier: Iterable[int], tree_time: list[Times]
    ) -> Iterable[Picked]:
        """Return the stored positions of the edges of a type that each frontier node picks, and their weights."""
        edge_type = self.graph.edge_types[index]
        csc, k = self.graph.csc[edge_type], self.spec.fanouts[edge_type][hop]
        type_key = make_key(Use.NEIGHBOR, *key, hop, index)
        for i in frontier:
            node, tree = dst.node[i], dst.tree[i]
            node_key = fold(fold(type_key, tree if self.spec.disjoint else 0), node)
            if dst.copy[i] > 0:
                node_key = fold(node_key, dst.copy[i])
            picked = self._pick(csc, node, node_key, k, tree_time, tree)
            yield picked, np.ones(picked.size, np.float32)

    def _pick(self, csc: CSC, node: int, key: U64, k: int, tree_time: list[Times], tree: int) -> Ints:
        begin, end = int(csc.colptr[node]), int(csc.colptr[node + 1])
        if k == 0 or begin == end:
            return np.empty(0, np.int64)
        column, first = slice(begin, end), 0
        if self.spec.temporal is not None and csc.time is not None:
            first, stop = picks.temporal(csc.time[column].numpy(), *tree_time[tree])
            begin, end = begin + first, begin + stop
        if self.spec.weighted and csc.weight is not None and csc.alias is not None:
            find = picks.by_alias(csc.alias[column].numpy(), first)
            return begin + picks.weighted(key, csc.weight[begin:end].numpy(), find, k, replace=self.spec.replace)
        if self.spec.temporal == "last":
            return begin + picks.last(end - begin, k)
        return begin + picks.uniform(key, end - begin, k, replace=self.spec.replace)

    def _result(
        self,
        nodes: Mapping[NodeType, Frontier],
        edges: Mapping[EdgeType, Edges],
        excluded: Mapping[EdgeType, set[int]],
    ) -> SampledSubgraph:
        """Return the sample of lists; for other subgraph types, replace or add edges."""
        spec = self.spec
        if spec.subgraph == "induced":
            edges = {t: induce(self.graph.csc[t], nodes[t[0]], nodes[t[2]], excluded[t]) for t in edges}
        row, col, edge_id = to_tensors(self.graph, edges)
        directional = spec.subgraph == "directional"
        sample = SampledSubgraph(
            node={t: torch.tensor(f.node, dtype=torch.int64) for t, f in nodes.items()},
            row=row,
            col=col,
            edge_id=edge_id,
            tree={t: torch.tensor(f.tree, dtype=torch.int64) for t, f in nodes.items()} if spec.disjoint else None,
            num_sampled_nodes={t: f.per_hop() for t, f in nodes.items()} if directional else None,
            num_sampled_edges={t: e.per_hop for t, e in edges.items()} if directional else None,
        )
        return sample if spec.reverse is None else add_reverses([sample], spec.reverse)[0]
