"""How cuGraph numbers what manyhop names: nodes of all types in one range, and edge types."""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from manyhop.graph import Graph, NodeType


class Numbering:
    """Vertices are ``first[node_type] + node``, type by type; edge types count from 0, in the graph's order.

    Args:
        graph: whose types these are.
        device: where the tensors of this object are.
    """

    def __init__(self, graph: Graph, device: torch.device) -> None:
        self.node_types, self.edge_types = graph.node_types, graph.edge_types
        *begins, self.num_vertices = accumulate(graph.num_nodes.values(), initial=0)
        self.first = dict(zip(self.node_types, begins, strict=True))
        self._begins, self._device = begins, device

    @cached_property
    def begins(self) -> Tensor:
        """``[num_node_types] int64``: the first vertex of each node type."""
        return torch.tensor(self._begins, dtype=torch.int64, device=self._device)

    def type_of(self, vertex: Tensor) -> Tensor:
        """Return ``[n] int64``: the index of the node type of each vertex, ``[n] int64``."""
        if len(self._begins) == 1:
            return torch.zeros_like(vertex)
        return torch.searchsorted(self.begins, vertex, right=True) - 1

    def vertices(self, node_type: NodeType, nodes: Tensor) -> Tensor:
        """Return ``[n] int64``: the vertices of nodes of a type, ``[n] int64``."""
        first = self.first[node_type]
        return nodes + first if first else nodes
