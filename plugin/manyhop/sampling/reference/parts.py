"""Numpy reference: the nodes and edges that a batch holds so far, and the edges among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

import torch
from torch import Tensor

from manyhop.graph import CSC, EdgeType, Graph, NodeType


class Frontier:
    """The nodes of one type that a batch holds so far, in order, with their trees."""

    def __init__(self) -> None:
        self.node: list[int] = []
        self.tree: list[int] = []
        self.copy: list[int] = []  # c for the c-th further copy of a seed, else 0
        self.local: dict[tuple[int, int], int] = {}  # (tree, node) -> local id of its first copy
        self.hop_begin = [0]  # local id at which each hop's new nodes begin
        self._copies: dict[tuple[int, int], int] = {}  # (tree, node) -> number of its copies

    def add_seed(self, node: int, tree: int) -> None:
        """Append a seed, also if it is there already."""
        self.copy.append(self._copies.get((tree, node), 0))
        self._copies[tree, node] = self.copy[-1] + 1
        self.local.setdefault((tree, node), len(self.node))
        self.node.append(node)
        self.tree.append(tree)

    def find_or_add(self, node: int, tree: int) -> int:
        """Local id of a neighbour; appends it where it first occurs."""
        if (tree, node) not in self.local:
            self.local[tree, node] = len(self.node)
            self.node.append(node)
            self.tree.append(tree)
            self.copy.append(0)
        return self.local[tree, node]

    def per_hop(self) -> list[int]:
        """``[num_hops + 1]``: seeds, then nodes added by each hop."""
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
        self.per_hop: list[int] = []


def excluded_positions(graph: Graph, exclude: Mapping[EdgeType, Tensor] | None) -> dict[EdgeType, set[int]]:
    """Stored positions of the edges of each type that a request excludes by the user's ids."""
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
        choose: which of the ``d`` entries of the column of local id ``i`` count, ``choose(i, d)``; ``None``: all.
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
    """``row``, ``col`` and ``edge_id`` of a result."""
    row: dict[EdgeType, Tensor] = {}
    col: dict[EdgeType, Tensor] = {}
    edge_id: dict[EdgeType, Tensor | None] = {}
    for t, e in edges.items():
        row[t], col[t] = torch.tensor([e.row, e.col], dtype=torch.int64)
        position = torch.tensor(e.position, dtype=torch.int64)
        perm = graph.csc[t].perm
        edge_id[t] = position if perm is None else perm[position].long()
    return row, col, edge_id
