"""Names of edge types, and types of values. Values by type are dictionaries in heterogeneous graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor
from torch.utils.data import IterDataPipe

from manyhop.errors import InputError
from manyhop.graph import EdgeType

Pipe: TypeAlias = IterDataPipe[Any]
"""A pipe of minibatches, or of other items."""
Nodes: TypeAlias = Tensor | dict[str, Tensor]
"""A tensor, by node type or edge type: ids ``[n]``, pairs of ids ``[n, 2]``, times, labels, ..."""
Fanout: TypeAlias = int | Sequence[int] | Tensor
"""Edges per node of one layer: of all types together, or ``[num_edge_types]``."""
Features: TypeAlias = dict[Any, Tensor]
"""Feature name, or ``(type, feature name)`` -> rows ``[n, ...]``."""


def by_type(value: object) -> dict[Any, Any]:
    """Return values by type; an untyped value has the type ``None``, and ``None`` no values."""
    return {} if value is None else dict(value) if isinstance(value, Mapping) else {None: value}


def as_given(values: dict[Any, Any]) -> Any:
    """Undo :func:`by_type`."""
    return values.get(None, values)


def ends_of(kind: str | None) -> tuple[Any, Any]:
    """Return the node types of the two ends of an edge type; ``None`` twice for untyped edges."""
    return (None, None) if kind is None else etype_str_to_tuple(kind)[::2]


class GBWarning(UserWarning):
    """The category of all warnings of this package, as in DGL 2.4."""


GONE = {
    "node_pairs": "seeds",
    "negative_srcs": "seeds with labels and indexes",
    "negative_dsts": "seeds with labels and indexes",
    "compacted_node_pairs": "compacted_seeds",
    "compacted_negative_srcs": "compacted_seeds with labels and indexes",
    "compacted_negative_dsts": "compacted_seeds with labels and indexes",
    "positive_node_pairs": "compacted_seeds",
    "negative_node_pairs": "compacted_seeds",
    "add_reverse_edges_2": "add_reverse_edges",
    "sample_negative_edges_uniform_2": "sample_negative_edges_uniform",
    "copy_to_shared_memory": "placement='shared', or pass the graph to the processes that you start",
    "load_from_shared_memory": "placement='shared', or pass the graph to the processes that you start",
    "isin": "torch.isin",
    "FusedSampledSubgraphImpl": "SampledSubgraphImpl",
    "LegacyDataset": "from_dglgraph(g), a BasicFeatureStore and item sets",
    "InSubgraphSampler": "NeighborSampler(datapipe, graph, [-1])",
    "sample_in_subgraph": "sample_neighbor(graph, [-1])",
    "in_subgraph": "sample_neighbors(nodes, -1)",
    "TemporalLayerNeighborSampler": "TemporalNeighborSampler",
    "temporal_sample_layer_neighbor": "temporal_sample_neighbor",
    "temporal_sample_layer_neighbors": "temporal_sample_neighbors",
    "expand_indptr": "torch.repeat_interleave",
    "index_select": "tensor[index]",
    **dict.fromkeys(
        ("buffer", "mark_end", "wait", "wait_future", "fetch_insubgraph_data", "sample_per_layer"),
        "none of the stages by which GraphBolt overlaps others: here they always overlap",
    ),
}
"""Names of GraphBolt that are not supported, and their replacements."""


def missing(owner: str, name: str) -> AttributeError:
    """Return the error of an attribute that does not exist."""
    if name in GONE:
        return AttributeError(f"{name} is not part of manyhop's GraphBolt. Use {GONE[name]}.", name=name)
    return AttributeError(f"{owner} has no attribute {name!r}.", name=name)


CANONICAL_ETYPE_DELIMITER = ":"
"""The separator of the three names of an edge type."""

ORIGINAL_EDGE_ID = "_ORIGINAL_EDGE_ID"
"""The edge attribute with the ids that edges had before they were sorted by destination."""


def etype_str_to_tuple(c_etype: str | EdgeType) -> EdgeType:
    """Split a type: ``"user:likes:item"`` -> ``("user", "likes", "item")``. A tuple is returned unchanged.

    Raises:
        InputError: not three names.
    """
    parts = tuple(c_etype.split(CANONICAL_ETYPE_DELIMITER)) if isinstance(c_etype, str) else c_etype
    if not isinstance(parts, tuple) or len(parts) != 3:
        raise InputError(f"Expected an edge type as 'source:relation:destination', got {c_etype!r}. Pass a str.")
    return parts


def etype_tuple_to_str(c_etype: EdgeType) -> str:
    """Join a type: ``("user", "likes", "item")`` -> ``"user:likes:item"``.

    Raises:
        InputError: not a tuple of three names.
    """
    if not isinstance(c_etype, tuple) or len(c_etype) != 3 or not all(isinstance(name, str) for name in c_etype):
        raise InputError(f"Expected an edge type as a tuple of three names, got {c_etype!r}.")
    return CANONICAL_ETYPE_DELIMITER.join(c_etype)
