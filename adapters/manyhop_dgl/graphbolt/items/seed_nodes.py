"""The nodes that items begin from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch import Tensor

from manyhop.arguments import integer
from manyhop.errors import InputError
from manyhop_dgl.graphbolt.items.names import etype_str_to_tuple
from manyhop_dgl.graphbolt.items.sets import HeteroItemSet, ItemSet, batched

_NAMES: Final = ("seeds", "seed_nodes", "node_pairs")


def nodes_of(items: ItemSet | HeteroItemSet, num_nodes: int | Mapping[str, int]) -> list[tuple[Tensor, int]]:
    """Return for each type of items the node of each item, of an edge its source, and the number of such nodes.

    Args:
        items: the items; indexable.
        num_nodes: number of nodes; by node type where items have types.

    Raises:
        InputError: items that are no nodes or edges, or numbers that do not fit them.
    """
    if isinstance(items, ItemSet):
        return [(_nodes(items), integer("num_nodes", num_nodes, 0))]
    found = []
    for kind, one in items.by_type.items():
        node_type = etype_str_to_tuple(kind)[0] if ":" in kind else kind
        if not isinstance(num_nodes, Mapping) or node_type not in num_nodes:
            raise InputError(f"Expected num_nodes with a number for '{node_type}', got {num_nodes!r}.")
        found.append((_nodes(one), integer(f"num_nodes['{node_type}']", num_nodes[node_type], 0)))
    return found


def _nodes(items: ItemSet) -> Tensor:
    place = next((i for i, name in enumerate(items.names or ()) if name in _NAMES), None)
    if place is None:
        raise InputError(f"Expected items with one of the names {_NAMES} for seed_parts, got {items.names}.")
    whole = batched(items[:])
    seeds = whole[place] if isinstance(whole, tuple) else whole
    if not isinstance(seeds, Tensor) or seeds.dim() not in (1, 2) or seeds.is_floating_point():
        raise InputError(f"Expected integers of shape [n] or [n, 2] for seed_parts, got items {items.names} of others.")
    return seeds if seeds.dim() == 1 else seeds[:, 0]
