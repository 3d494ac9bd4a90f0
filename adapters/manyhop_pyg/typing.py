"""Types that the modules of this package share. Ids of nodes and edges are ``[n]`` tensors, by type where there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, HeteroSamplerOutput, NodeSamplerInput, SamplerOutput

from manyhop.graph import EdgeType, NodeType

Batch: TypeAlias = Data | HeteroData
"""What users get, and one of the kinds of data that they pass."""
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
"""Node or edge type -> number of its nodes or edges, where all sampled ids are known to be below it."""
Positions: TypeAlias = Tensor | list[int]
"""Which seeds are in a batch: ``[batch_size] int64``, or what a sampler of the user gave."""
Attributes: TypeAlias = dict[str, object]
"""What one of PyG's storages holds, by name."""
Transform: TypeAlias = Callable[..., Any]
"""A function of the user's, called with a batch or a sample."""
StoreSize: TypeAlias = tuple[int | None, int | None]
"""Nodes and edges of a store without types, which distinguish node attributes from edge attributes; else ``None``."""
