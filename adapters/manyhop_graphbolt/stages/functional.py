"""Functions on edges and nodes that stages, and users' own samplers, are made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

from manyhop.arguments import as_ids
from manyhop.errors import InputError
from manyhop_graphbolt.graph.subgraph import CSC, CSCFormatBase, Excluded, split_pairs
from manyhop_graphbolt.items.minibatch import MiniBatch
from manyhop_graphbolt.types import Nodes, etype_str_to_tuple

Number: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""``number(nodes of columns, others)`` returns the nodes of rows, and the position of each argument's node."""


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
    if isinstance(nodes, dict):
        pairs = {ntype: unique_and_compact(some) for ntype, some in nodes.items()}
        return {ntype: values for ntype, (values, _) in pairs.items()}, {ntype: c for ntype, (_, c) in pairs.items()}
    parts = [as_ids("nodes", some) for some in nodes]
    values, place = unique(torch.cat(parts))
    return values, list(torch.split(place, [some.numel() for some in parts]))


def unique_and_compact_csc_formats(csc_formats: CSC, unique_dst_nodes: Nodes) -> tuple[Nodes, CSC]:
    """Number the rows of edges: the columns' nodes first, then each other node by first occurrence.

    Args:
        csc_formats: the edges; their ``indices`` are nodes of the graph. By edge type or not.
        unique_dst_nodes: the nodes of the columns, ``[num_columns]``, without repetitions. By node type or not.

    Returns:
        The nodes of the rows, and the edges with positions among these.
    """
    return _compact(csc_formats, unique_dst_nodes, lambda nodes, others: unique(torch.cat((nodes, others))))


def compact_csc_format(csc_formats: CSC, dst_nodes: Nodes, dst_timestamps: Nodes | None = None) -> tuple[Any, ...]:
    """Number the rows of edges without looking for repetitions: the columns' nodes first, then a row per edge.

    Args:
        csc_formats: the edges; their ``indices`` are nodes of the graph. By edge type or not.
        dst_nodes: the nodes of the columns, ``[num_columns]``. By node type or not.
        dst_timestamps: the times of the columns, ``[num_columns]``, or windows, ``[num_columns, 2]``, which their
            neighbours take over.

    Returns:
        The nodes of the rows, the edges with positions among these and, with ``dst_timestamps``, the times of the rows.
    """

    def each_apart(nodes: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat((nodes, others))
        return both, torch.arange(both.numel(), dtype=both.dtype, device=both.device)

    rows, compacted = _compact(csc_formats, dst_nodes, each_apart)
    if dst_timestamps is None:
        return rows, compacted
    if not isinstance(csc_formats, dict):
        assert isinstance(dst_timestamps, Tensor)
        times = _of_edges(csc_formats, dst_timestamps)
        return rows, compacted, torch.cat((dst_timestamps, times))
    assert isinstance(dst_timestamps, dict)
    of_rows = {ntype: [times] for ntype, times in dst_timestamps.items()}
    for name, csc in csc_formats.items():
        src, _, dst = etype_str_to_tuple(name)
        if csc.indices.numel() or src not in of_rows:
            times = _of_edges(csc, dst_timestamps[dst])
            of_rows.setdefault(src, []).append(times)
    return rows, compacted, {ntype: torch.cat(times) for ntype, times in of_rows.items()}


def _of_edges(csc: CSCFormatBase, of_columns: Tensor) -> Tensor:
    """Return the value of the column of each edge."""
    return of_columns.repeat_interleave(csc.indptr.diff(), dim=0, output_size=csc.indices.numel())


def _compact(csc_formats: CSC, columns: Nodes, number: Number) -> tuple[Nodes, CSC]:
    """Number the rows of edges by ``number(columns' nodes, others) -> (nodes, position of each of both)``."""
    if not isinstance(csc_formats, dict):
        if not isinstance(columns, Tensor):
            raise InputError("Expected nodes without types for edges without types, got a dictionary.")
        _check_columns("the edges", csc_formats, columns)
        rows, place = number(columns, csc_formats.indices)
        return rows, CSCFormatBase(csc_formats.indptr, place[columns.numel() :])
    if not isinstance(columns, dict):
        raise InputError("Expected nodes by type for edges by type, got a tensor.")
    others: dict[str, list[Tensor]] = {ntype: [] for ntype in columns}
    for name, csc in csc_formats.items():
        src, _, dst = etype_str_to_tuple(name)
        _check_columns(name, csc, columns.get(dst, csc.indices[:0]))
        others.setdefault(src, []).append(csc.indices)
    rows_by_type: dict[str, Tensor] = {}
    places: dict[str, Iterator[Tensor]] = {}
    for ntype, parts in others.items():
        begin = columns[ntype] if ntype in columns else parts[0][:0]
        rows_by_type[ntype], place = number(begin, torch.cat([begin[:0], *parts]))
        places[ntype] = iter(torch.split(place[begin.numel() :], [part.numel() for part in parts]))
    compacted = {
        name: CSCFormatBase(csc.indptr, next(places[etype_str_to_tuple(name)[0]])) for name, csc in csc_formats.items()
    }
    return rows_by_type, compacted


def _check_columns(name: str, csc: CSCFormatBase, columns: Tensor) -> None:
    if csc.indptr.numel() != columns.numel() + 1:
        raise InputError(
            f"Expected as many columns in {name} as there are nodes they stand for ({columns.numel()}), "
            f"got {csc.indptr.numel() - 1}."
        )


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
    if not isinstance(edges, dict):
        return torch.cat((edges, _reversed(edges)))
    both = dict(edges)
    for name, reverse in (reverse_etypes_mapping or {}).items():
        if name in edges:
            turned = _reversed(edges[name])
            both[reverse] = torch.cat((both[reverse], turned)) if reverse in both else turned
    return both


def _reversed(pairs: Tensor) -> Tensor:
    src, dst = split_pairs(pairs)
    return torch.stack((dst, src), dim=1)


def exclude_seed_edges(
    minibatch: MiniBatch, include_reverse_edges: bool = False, reverse_etypes_mapping: dict[str, str] | None = None
) -> MiniBatch:
    """Remove the seed edges from all sampled layers of a minibatch.

    Args:
        minibatch: a minibatch of links whose layers are sampled.
        include_reverse_edges: also exclude the reverses of the seed edges.
        reverse_etypes_mapping: edge type -> that of its reverses, for heterogeneous graphs.

    Returns:
        The minibatch.

    Raises:
        InputError: no seed edges, no layers, or ``reverse_etypes_mapping`` without meaning or with unknown types.
    """
    layers = minibatch.sampled_subgraphs
    of_layers = [layer.sampled_csc for layer in layers or () if isinstance(layer.sampled_csc, dict)]
    sampled = {name for csc in of_layers for name in csc}
    edges = edges_to_exclude(minibatch, include_reverse_edges, reverse_etypes_mapping, sampled)
    if layers is None:
        raise InputError("Expected a minibatch whose layers are sampled, got one without. Sample before excluding.")
    minibatch.sampled_subgraphs = [layer.exclude_edges(edges) for layer in layers]
    return minibatch


def edges_to_exclude(
    minibatch: MiniBatch,
    include_reverse_edges: bool,
    reverse_etypes_mapping: dict[str, str] | None,
    sampled: Collection[str],
) -> Excluded:
    """Return the edges that :func:`exclude_seed_edges` removes; ``sampled`` are the names of the sampled edge types."""
    edges = minibatch.seeds
    if edges is None:
        raise InputError("Expected a minibatch with seed edges to exclude, got none.")
    if include_reverse_edges:
        _check_mapping(reverse_etypes_mapping, edges, sampled)
        edges = add_reverse_edges(edges, reverse_etypes_mapping)
    elif reverse_etypes_mapping is not None:
        raise InputError("Expected reverse_etypes_mapping only with include_reverse_edges=True, got it without.")
    return edges


def _check_mapping(mapping: dict[str, str] | None, edges: object, sampled: Collection[str]) -> None:
    """Raise for unknown edge types: with a misspelt name, reverse edges would remain, and leak the labels."""
    if not sampled or not isinstance(edges, dict):
        return
    for name, reverse in (mapping or {}).items():
        unknown = name if name not in sampled and name not in edges else reverse if reverse not in sampled else None
        if unknown is not None:
            raise InputError(
                f"Expected reverse_etypes_mapping between edge types of the graph, {sorted(sampled)}, got {unknown!r}."
            )
