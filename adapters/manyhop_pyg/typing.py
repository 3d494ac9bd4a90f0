"""Shared types. Ids of nodes and edges are ``[n]`` tensors, by type in heterogeneous graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, HeteroSamplerOutput, NodeSamplerInput, SamplerOutput

from manyhop.graph import EdgeType, NodeType

Batch: TypeAlias = Data | HeteroData
"""A batch, or data in memory."""
Stores: TypeAlias = tuple[FeatureStore, GraphStore]
PyGData: TypeAlias = Batch | Stores
Inputs: TypeAlias = NodeSamplerInput | EdgeSamplerInput
"""Seeds of a batch."""
Sample: TypeAlias = SamplerOutput | HeteroSamplerOutput
Metadata: TypeAlias = tuple[Any, ...]
"""Tensors of a sample's seeds, or ``None``; see ``node_metadata`` and ``edge_metadata``."""
Permutation: TypeAlias = Tensor | Mapping[EdgeType, Tensor | None] | None
"""The user's ids ``[num_edges]`` of the sampler's edges; ``None``: they are the same."""
Bounds: TypeAlias = Mapping[NodeType | EdgeType, int]
"""Node or edge type -> number of its nodes or edges, if it bounds all sampled ids."""
Positions: TypeAlias = Tensor | list[int]
"""Positions of a batch's seeds: ``[batch_size] int64``, or the output of the user's sampler."""
Attributes: TypeAlias = dict[str, object]
"""Attributes of one of PyG's storages, by name."""
Transform: TypeAlias = Callable[..., Any]
"""The user's function of a batch or a sample."""
StoreSize: TypeAlias = tuple[int | None, int | None]
"""Numbers of nodes and edges of a homogeneous store, which identify its attributes; otherwise ``None``."""
