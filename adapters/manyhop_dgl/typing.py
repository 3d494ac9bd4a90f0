"""Types that the modules of this package share; without DGL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from manyhop.graph import EdgeType, NodeType

EdgeName: TypeAlias = str | EdgeType
"""An edge type: its relation, or the canonical type ``(src, relation, dst)``."""
Pairs: TypeAlias = tuple[Tensor, Tensor]
"""Sources and destinations, ``[num_edges]`` each."""
Names: TypeAlias = Sequence[str] | Mapping[Any, Sequence[str]] | None
"""Names of data, of all types or by node type or edge type."""
Fanouts: TypeAlias = Iterable[int | Mapping[EdgeName, int]]
"""Neighbours per node, layer by layer, the input layer first; by edge type, or for all of them."""
LayerFanouts: TypeAlias = int | tuple[tuple[EdgeName, int], ...]
"""The fanouts of a layer, hashable."""
Nodes: TypeAlias = Tensor | Mapping[NodeType, Tensor]
"""Ids of nodes, of the one node type or by node type."""


class GraphLike(Protocol):
    """The common methods of a ``DGLGraph`` and a :class:`manyhop_dgl.Graph`."""

    @property
    def ntypes(self) -> Sequence[NodeType]: ...

    @property
    def canonical_etypes(self) -> Sequence[EdgeType]: ...

    @property
    def idtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def nodes(self) -> Any: ...

    @property
    def edges(self) -> Any: ...

    def num_nodes(self, ntype: NodeType | None = None) -> int: ...

    def num_edges(self, etype: EdgeType | None = None) -> int: ...

    def to_canonical_etype(self, etype: str | EdgeType) -> EdgeType: ...

    def find_edges(self, eid: Tensor, etype: EdgeType | None = None) -> Pairs: ...

    def has_edges_between(self, u: Tensor, v: Tensor, etype: EdgeType | None = None) -> Any: ...
