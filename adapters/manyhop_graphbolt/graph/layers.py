"""Layers: their fanouts, the nodes of multiple tensors once each, numbers for the rows of edges, reverse edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from manyhop.arguments import as_ids
from manyhop.errors import InputError
from manyhop.graph import EdgeType
from manyhop_graphbolt.types import CSC, CSCFormatBase, Fanout, Nodes, as_given, by_type, ends_of, of_edges, split_pairs


def fanout_tensors(fanouts: object) -> list[Tensor]:
    """Return ``[1]`` or ``[num_edge_types]`` integers per layer."""
    if not isinstance(fanouts, Sequence | Tensor) or isinstance(fanouts, str) or len(fanouts) == 0:
        raise InputError(f"Expected at least one fanout, one per layer, got {fanouts!r}. Pass a list of integers.")
    return [f if isinstance(f, Tensor) else torch.tensor(fanout_list(f)) for f in fanouts]


def fanout_list(fanout: Any) -> list[int]:
    """Return the fanouts of one layer, passed as an integer, a sequence or a tensor."""
    if isinstance(fanout, Tensor):
        if fanout.dim() > 1 or fanout.dtype.is_floating_point or fanout.dtype == torch.bool or fanout.numel() == 0:
            raise InputError(
                f"Fanouts should be 1-D tensor of integers, got {fanout.dtype} of shape {list(fanout.shape)}."
            )
        return [int(k) for k in fanout.view(-1).tolist()]
    several = fanout if isinstance(fanout, Sequence) else [fanout]
    if several and all(isinstance(k, Integral) and not isinstance(k, bool) for k in several):
        return [int(k) for k in several]
    raise InputError(f"Expected the fanout of a layer as an integer or a 1-D tensor of integers, got {fanout!r}.")


def fanouts_by_type(
    fanouts: Sequence[Fanout], types: Sequence[EdgeType], count: int, *, fused: bool
) -> dict[EdgeType, tuple[int, ...]]:
    """Return the fanouts of tables by type, hop by hop; ``count``: of all edge types, which a ``fused`` table has."""
    found: dict[EdgeType, list[int]] = {t: [] for t in types}
    for hop in [fanout_list(fanout) for fanout in reversed(fanouts)]:
        if len(hop) not in (1, count):
            raise InputError(
                "Fanouts should have the same number of elements as etypes or should have a length of 1: expected "
                f"{count}, got {len(hop)}."
            )
        if any(k < -1 for k in hop):
            raise InputError(
                f"Fanouts should consist of values that are either -1 or greater than or equal to 0, got {hop}."
            )
        same = len(set(hop)) == 1 and hop[0] in (0, -1)  # for one type or for all: no difference
        if not same and (len(hop) > 1 if fused else len(hop) < count):
            raise InputError(
                f"Expected fanouts of one number in all layers, or of {count} (one per edge type) in all layers, "
                f"got {[fanout_list(fanout) for fanout in fanouts]}. Use the same form for all."
            )
        for i, t in enumerate(types):
            found[t].append(hop[0] if len(hop) == 1 or fused else hop[i])
    return {t: tuple(hops) for t, hops in found.items()}


def unique(nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``nodes [n]`` without repetitions, by first occurrence, and the position of each node in it."""
    values, place = torch.unique(nodes, return_inverse=True)
    position = torch.arange(nodes.numel(), device=nodes.device)
    first = position.new_full((values.numel(),), nodes.numel()).scatter_reduce(0, place, position, "amin")
    order = first.argsort()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.numel(), device=order.device)
    return values[order], rank[place].to(nodes.dtype)


def unique_and_compact(nodes: list[Tensor] | dict[str, list[Tensor]]) -> tuple[Any, Any]:
    """Return the nodes of multiple tensors, each once, in the order of their first occurrence.

    Args:
        nodes: ``[n]`` each; or multiple tensors per node type.

    Returns:
        The nodes ``[num_nodes]``, and tensors with the positions of the nodes; by type if the
        arguments are.
    """
    found, places = {}, {}
    for ntype, some in by_type(nodes).items():
        parts = [as_ids("nodes", ids) for ids in some]
        found[ntype], place = unique(torch.cat(parts))
        places[ntype] = list(torch.split(place, [part.numel() for part in parts]))
    return as_given(found), as_given(places)


def unique_and_compact_csc_formats(csc_formats: CSC, unique_dst_nodes: Nodes) -> tuple[Nodes, CSC]:
    """Number the rows of edges: the columns' nodes first, then each other node by first occurrence.

    Args:
        csc_formats: the edges; their ``indices`` are nodes of the graph. By edge type or not.
        unique_dst_nodes: the nodes of the columns, ``[num_columns]``, without repetitions. By node type or not.

    Returns:
        The nodes of the rows, and the edges with positions among these.
    """
    return _compact(csc_formats, unique_dst_nodes, unique)


def compact_csc_format(csc_formats: CSC, dst_nodes: Nodes, dst_timestamps: Nodes | None = None) -> tuple[Any, ...]:
    """Number the rows of edges without looking for repetitions: the columns' nodes first, then a row per edge.

    Args:
        csc_formats: see :func:`unique_and_compact_csc_formats`.
        dst_nodes: the nodes of the columns, ``[num_columns]``. By node type or not.
        dst_timestamps: the times of the columns, ``[num_columns]``, which their neighbours take over.

    Returns:
        The nodes of the rows, the edges with positions among these and, with ``dst_timestamps``, the times of the rows.
    """
    rows, compacted = _compact(
        csc_formats, dst_nodes, lambda nodes: (nodes, torch.arange(len(nodes), dtype=nodes.dtype, device=nodes.device))
    )
    if dst_timestamps is None:
        return rows, compacted
    times = by_type(dst_timestamps)
    of_rows = {ntype: [of_type] for ntype, of_type in times.items()}
    for name, csc in by_type(csc_formats).items():
        src, dst = ends_of(name)
        if csc.indices.numel() or src not in of_rows:
            of_rows.setdefault(src, []).append(of_edges(csc, times[dst]))
    return rows, compacted, as_given({ntype: torch.cat(parts) for ntype, parts in of_rows.items()})


def _compact(csc_formats: CSC, columns: Nodes, number: Callable[[Tensor], tuple[Tensor, Tensor]]) -> tuple[Nodes, CSC]:
    """Number the rows of edges; ``number`` returns the nodes of the rows, and the position of each given node."""
    if isinstance(csc_formats, dict) != isinstance(columns, dict):
        kinds = ("by type", "without types") if isinstance(csc_formats, dict) else ("without types", "by type")
        raise InputError(f"Expected nodes {kinds[0]} for edges {kinds[0]}, got nodes {kinds[1]}.")
    edges, begins = by_type(csc_formats), by_type(columns)
    others: dict[str | None, list[Tensor]] = {ntype: [] for ntype in begins}
    for name, csc in edges.items():
        src, dst = ends_of(name)
        count = len(begins.get(dst, ()))
        if csc.indptr.numel() != count + 1:
            raise InputError(
                f"Expected as many columns in {name or 'the edges'} as there are nodes they stand for ({count}), "
                f"got {csc.indptr.numel() - 1}."
            )
        others.setdefault(src, []).append(csc.indices)
    rows, places = {}, {}
    for ntype, parts in others.items():
        begin = begins[ntype] if ntype in begins else parts[0][:0]
        rows[ntype], place = number(torch.cat([begin, *parts]))
        places[ntype] = iter(torch.split(place[begin.numel() :], [part.numel() for part in parts]))
    compacted = {name: CSCFormatBase(csc.indptr, next(places[ends_of(name)[0]])) for name, csc in edges.items()}
    return as_given(rows), as_given(compacted)


def add_reverse_edges(edges: Nodes, reverse_etypes_mapping: dict[str, str] | None = None) -> Nodes:
    """Return pairs of nodes and their reverses.

    Args:
        edges: ``[n, 2]``; by edge type or not.
        reverse_etypes_mapping: edge type -> that of its reverses; types that are not in it get none. Required if
            ``edges`` are by type.

    Returns:
        The same kind of thing, with up to twice as many pairs per type.

    Raises:
        InputError: edges by type without the mapping, or the mapping without types.
    """
    if isinstance(edges, dict) != (reverse_etypes_mapping is not None):
        raise InputError(
            "Expected reverse_etypes_mapping with edges by type, and only with those; got "
            + ("none. Pass edge type -> reverse edge type." if isinstance(edges, dict) else "one. Leave it out.")
        )
    pairs = by_type(edges)
    both = dict(pairs)
    for name, reverse in ({None: None} if reverse_etypes_mapping is None else reverse_etypes_mapping).items():
        if name in pairs:
            src, dst = split_pairs(pairs[name])
            turned = torch.stack((dst, src), dim=1)
            both[reverse] = torch.cat((both[reverse], turned)) if reverse in both else turned
    result: Nodes = as_given(both)
    return result
