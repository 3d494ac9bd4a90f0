"""A graph of several types as torch tensors: the edges of each edge type, the number of nodes of each node type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from dgl import DGLError, graph_index

from manyhop_dgl_cuda.adjacency import Adjacency

FORMATS = ("coo", "csr", "csc")


class Structure:
    """Edges by type and numbers of nodes by type.

    Args:
        ends: node types of the source and the destination of each edge type.
        relations: edges of each edge type, all on one device and of one type of ids.
        num_nodes: number of nodes of each node type.
        allowed: the formats that the graph reports to have.
        metagraph: DGL's graph of the types; made of ``ends`` when it is needed if left out.
    """

    def __init__(
        self,
        ends: Sequence[tuple[int, int]],
        relations: Sequence[Adjacency],
        num_nodes: Sequence[int],
        allowed: Sequence[str] = FORMATS,
        metagraph: graph_index.GraphIndex | None = None,
    ) -> None:
        self.ends, self.relations = [(int(s), int(d)) for s, d in ends], list(relations)
        self.num_nodes_by_type = [int(n) for n in num_nodes]
        self.allowed = FORMATS if allowed is FORMATS else tuple([name for name in FORMATS if name in allowed])
        self._metagraph = metagraph

    @property
    def metagraph(self) -> graph_index.GraphIndex:
        """DGL's graph of the types."""
        if self._metagraph is None:
            src, dst = [s for s, _ in self.ends], [d for _, d in self.ends]
            self._metagraph = graph_index.from_coo(len(self.num_nodes_by_type), src, dst, True)
        return self._metagraph

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.relations[0].device

    def only_relation(self) -> Adjacency:
        """The edges of a graph of one edge type.

        Raises:
            DGLError: there are several.
        """
        if len(self.relations) != 1:
            raise DGLError(f"Expected a graph with one edge type, got one with {len(self.relations)}. Choose a type.")
        return self.relations[0]

    def with_relations(
        self,
        relations: Sequence[Adjacency],
        num_nodes: Sequence[int] | None = None,
        ends: Sequence[tuple[int, int]] | None = None,
    ) -> Self:
        """Another graph of the same types, or of ``ends``."""
        return type(self)(
            self.ends if ends is None else ends,
            relations,
            self.num_nodes_by_type if num_nodes is None else num_nodes,
            self.allowed,
            self._metagraph if ends is None else None,
        )
