"""Which edges the blocks around seed edges must not have."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from manyhop.arguments import as_ids, check_range
from manyhop.errors import InputError
from manyhop.graph import EdgeType
from manyhop_dgl.samplers.arguments import canonical
from manyhop_dgl.typing import EdgeName, GraphLike

_MODES = (None, "self", "reverse_id", "reverse_types")


def check_exclude(exclude: object, reverse_eids: object, reverse_etypes: object) -> None:
    """Raise InputError where arguments for the exclusion of edges contradict each other."""
    explicit = isinstance(exclude, Tensor | Mapping) or callable(exclude)
    if not explicit and exclude not in _MODES:
        raise InputError(f"Expected exclude to be one of {_MODES}, a callable or edge ids, got {exclude!r}.")
    for name, given, mode in (
        ("reverse_eids", reverse_eids, "reverse_id"),
        ("reverse_etypes", reverse_etypes, "reverse_types"),
    ):
        wanted = not explicit and exclude == mode
        if wanted and given is None:
            raise InputError(f"exclude={mode!r} needs {name}.")
        if name == "reverse_etypes" and wanted and not isinstance(given, Mapping):
            raise InputError(
                f"Expected reverse_etypes as a dict, edge type -> the type of its reverses, got {given!r}."
            )
        if given is not None and not wanted and not callable(exclude):  # a callable decides by itself
            raise InputError(f"{name} is for exclude={mode!r}, got exclude={exclude!r}: leave {name} out.")


def edges_to_exclude(
    g: GraphLike,
    exclude: object,
    edges: Mapping[EdgeType, Tensor],
    given: object,
    reverse_eids: object,
    reverse_etypes: Mapping[EdgeName, EdgeName] | None,
) -> object:
    """What a sampler of nodes takes as edges to exclude: a tensor, or a dict by canonical edge type.

    Args:
        g: the graph.
        exclude: the mode, a callable, or the edges themselves.
        edges: the seed edges by canonical edge type.
        given: the same, or the tensor of those of the one type there is: what a callable gets.
        reverse_eids: for ``"reverse_id"``.
        reverse_etypes: for ``"reverse_types"``.
    """
    if exclude is None:
        return None
    if isinstance(exclude, Tensor | Mapping):
        return exclude
    if callable(exclude):
        return exclude(given)
    edge_types = list(g.canonical_etypes)
    found = dict(edges)
    if exclude == "reverse_id":
        reverse = reverse_eids if isinstance(reverse_eids, Mapping) else {edge_types[0]: reverse_eids}
        if not isinstance(reverse_eids, Mapping) and len(edge_types) != 1:
            raise InputError(
                f"Expected reverse_eids as a dict, edge type -> ids, since the graph has several: {edge_types}."
            )
        by_type = {canonical(t, edge_types, "reverse_eids"): ids for t, ids in reverse.items()}
        found = {t: torch.cat([ids, _reverses(t, ids, by_type, g)]) for t, ids in edges.items()}
    elif exclude == "reverse_types":
        assert reverse_etypes is not None
        for name, other in reverse_etypes.items():
            edge_type = canonical(name, edge_types, "reverse_etypes")
            reverse_type = canonical(other, edge_types, "reverse_etypes")
            if edge_type in edges:
                parts = [part for part in (found.get(reverse_type), edges[edge_type]) if part is not None]
                found[reverse_type] = parts[0] if len(parts) == 1 else torch.unique(torch.cat(parts))
    return next(iter(found.values())) if len(edge_types) == 1 else found


def on_host(reverse_eids: object) -> object:
    """Return ids of reverse edges in host memory, where batches look them up: DGL's examples move them to a GPU."""
    if isinstance(reverse_eids, Mapping):
        return {edge_type: on_host(ids) for edge_type, ids in reverse_eids.items()}
    return reverse_eids.cpu() if isinstance(reverse_eids, Tensor) else reverse_eids


def _reverses(edge_type: EdgeType, ids: Tensor, reverse: Mapping[EdgeType, object], g: GraphLike) -> Tensor:
    if edge_type not in reverse:
        raise InputError(f"Expected reverse_eids for the seed edges' type {edge_type}, got them for {list(reverse)}.")
    table = as_ids(f"reverse_eids of {edge_type}", reverse[edge_type])
    if table.shape != (g.num_edges(edge_type),):
        raise InputError(
            f"Expected reverse_eids of shape [{g.num_edges(edge_type)}], one per edge of {edge_type}, got "
            f"{list(table.shape)}."
        )
    found = table[ids.long()]
    advice = "An edge without a reverse has its own id."
    check_range(f"reverse_eids of {edge_type}", found, g.num_edges(edge_type), advice=advice)
    return found.to(ids.dtype)
