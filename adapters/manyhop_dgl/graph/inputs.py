"""Edges and numbers of nodes as users give them, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from manyhop.arguments import as_tensor
from manyhop.errors import GraphError, InputError
from manyhop.graph import HOMOGENEOUS_NODE, EdgeType, NodeType


def checked_edge_type(edge_type: object) -> EdgeType:
    """A canonical edge type, of that form.

    Raises:
        InputError: it is none.
    """
    if isinstance(edge_type, tuple) and len(edge_type) == 3 and all(isinstance(part, str) for part in edge_type):
        return edge_type
    raise InputError(f"Expected edge types as (source type, relation, destination type), got {edge_type!r}.")


def checked_pair(edge_type: EdgeType, pair: Any) -> tuple[Tensor, Tensor]:
    """The ends of the edges of one type, ``[num_edges] int64 or int32``, in CPU memory or that of a GPU.

    Raises:
        GraphError: they are not.
    """
    try:
        src, dst = pair
    except (TypeError, ValueError, RuntimeError):
        raise GraphError(
            f"Expected the edges of {edge_type} as (sources, destinations), got {type(pair).__name__}."
        ) from None
    src, dst = (as_tensor(f"the edges of {edge_type}", ids, GraphError) for ids in (src, dst))
    # An empty list has no dtype of its own.
    src, dst = (ids.long() if ids.numel() == 0 else ids for ids in (src, dst))
    if src.shape != dst.shape or src.dim() != 1:
        raise GraphError(
            f"Expected the edges of {edge_type} as two tensors [num_edges], got shapes {list(src.shape)} and "
            f"{list(dst.shape)}."
        )
    for ids in (src, dst):
        if ids.dtype not in (torch.int32, torch.int64) or ids.device.type not in ("cpu", "cuda"):
            raise GraphError(
                f"Expected ids of {edge_type} as int64 or int32 on the CPU or a GPU, got {ids.dtype} on {ids.device}."
            )
    return src, dst


def node_counts(num_nodes: object, lists: Mapping[EdgeType, tuple[Tensor, Tensor]]) -> dict[NodeType, int]:
    """Nodes by type, in DGL's order: by name.

    Raises:
        InputError: no numbers.
    """
    found: dict[NodeType, int] = {}
    for (src_type, _, dst_type), (src, dst) in lists.items():
        for node_type, ids in ((src_type, src), (dst_type, dst)):
            found[node_type] = max(found.get(node_type, 0), int(ids.max()) + 1 if ids.numel() else 0)
    if num_nodes is None:
        return dict(sorted(found.items()))
    if not isinstance(num_nodes, Mapping):
        if set(found) != {HOMOGENEOUS_NODE}:
            raise InputError(f"Expected num_nodes as {{node type: number}} of {sorted(found)}, got {num_nodes!r}.")
        num_nodes = {HOMOGENEOUS_NODE: num_nodes}
    for node_type, n in num_nodes.items():
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise InputError(f"Expected the number of nodes of type {node_type!r} as an integer, 0 or more, got {n!r}.")
    return dict(sorted(num_nodes.items()))
