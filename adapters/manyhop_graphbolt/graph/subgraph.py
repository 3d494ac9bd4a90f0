"""The edges that were sampled for one layer, the same without given edges, and functions that make such layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor

from manyhop.arguments import as_ids, as_tensor
from manyhop.errors import InputError
from manyhop.system.arrays import describe
from manyhop_graphbolt.types import Movable, Nodes, as_given, by_type, ends_of, etype_str_to_tuple, show


def split_pairs(pairs: object) -> tuple[Tensor, Tensor]:
    """Return sources and destinations of pairs ``[n, 2]``."""
    what = "pairs of nodes"
    both = as_tensor(what, pairs) if isinstance(pairs, Tensor) else None
    if both is None or both.dim() != 2 or both.shape[1] != 2:
        advice = " Pass torch.stack(pairs, dim=1)." if isinstance(pairs, tuple) else ""
        raise InputError(f"Expected {what} as a tensor [n, 2], got {describe(pairs)}.{advice}")
    return as_ids(what, both[:, 0]), as_ids(what, both[:, 1])


@dataclass(eq=False, repr=False)
class CSCFormatBase(Movable):
    """Edges grouped by the column that they lead to: ``indices[indptr[c]:indptr[c + 1]]`` are the rows of column ``c``.

    Raises:
        InputError: the last entry of ``indptr`` is not the number of indices (only looked at on a CPU).
    """

    indptr: Tensor
    """``[num_columns + 1]`` integer."""

    indices: Tensor
    """``[num_edges]`` integer."""

    def __post_init__(self) -> None:
        indptr, indices = self.indptr, self.indices
        if not isinstance(indptr, Tensor) or not isinstance(indices, Tensor):
            raise InputError(
                f"Expected indptr and indices as tensors, got {type(indptr).__name__} and {type(indices).__name__}."
            )
        if indptr.device.type == "cpu" and (indptr.numel() == 0 or int(indptr[-1]) != indices.numel()):
            last = int(indptr[-1]) if indptr.numel() else "none"
            raise InputError(f"Expected indptr to end with the number of indices ({indices.numel()}), got {last}.")

    @classmethod
    def trusted(cls, indptr: Tensor, indices: Tensor) -> CSCFormatBase:
        """Make an instance without validation."""
        csc = cls.__new__(cls)
        csc.indptr, csc.indices = indptr, indices
        return csc

    def __repr__(self) -> str:
        return show("CSCFormatBase", {"indptr": self.indptr, "indices": self.indices})


CSC: TypeAlias = CSCFormatBase | dict[str, CSCFormatBase]


def of_edges(csc: Any, of_columns: Tensor) -> Tensor:
    """Return the value of the column of each edge, of values ``[num_columns, ...]``."""
    return of_columns.repeat_interleave(csc.indptr.diff(), dim=0, output_size=csc.indices.numel())


def columns_of_edges(csc: Any) -> Tensor:
    """Return ``[num_edges]``: the column of each edge, of the dtype of ``indices``."""
    return of_edges(csc, torch.arange(csc.indptr.numel() - 1, dtype=csc.indices.dtype, device=csc.indices.device))


class PyGLayerData(NamedTuple):
    """The arguments of a PyG layer, by node type and by edge type if the subgraph is heterogeneous."""

    x: tuple[Any, Any]
    """Features of the source nodes ``[num_rows, ...]`` and of the target nodes ``[num_columns, ...]``."""

    edge_index: Any
    """``[2, num_edges] int64``: source and target of each edge."""

    size: Any
    """Number of source nodes and of target nodes."""


@dataclass(eq=False, repr=False)
class SampledSubgraph(Movable):
    """The base of sampled subgraphs.

    The values of a heterogeneous one are dictionaries, by node type or by edge type (``"src:rel:dst"``).

    Raises:
        InputError: no edges, or edge types that are not ``"src:rel:dst"``.
    """

    sampled_csc: Any = None
    """:class:`CSCFormatBase`: the edges."""

    original_column_node_ids: Nodes | None = None
    """``[num_columns]``: the node of the graph that each column stands for; ``None``: columns are nodes."""

    original_row_node_ids: Nodes | None = None
    """``[num_rows]``: the node of the graph that each row stands for; ``None``: rows are nodes."""

    original_edge_ids: Nodes | None = None
    """``[num_edges]``: the edge of the graph that each edge is; ``None`` where the graph does not keep ids of edges."""

    row_mask: Nodes | None = None
    """``[num_rows] bool``: which rows are real, of a loader with ``pad="auto"``; the columns come
    first; ``None`` without padding."""

    edge_mask: Nodes | None = None
    """``[num_edges] bool``: which edges are real; ``None`` without padding."""

    def __post_init__(self) -> None:
        for name, part in (by_type(self.sampled_csc) or {None: None}).items():
            if not (hasattr(part, "indptr") and hasattr(part, "indices")):
                raise InputError(
                    f"Expected sampled_csc as CSCFormatBase, or those by edge type, got a {type(part).__name__}."
                )
            if name is not None:
                etype_str_to_tuple(name)

    def exclude_edges(self, edges: Nodes, assume_num_node_within_int32: bool = True) -> Self:
        """Return the subgraph without some edges, with all nodes.

        Args:
            edges: ``[n, 2]`` nodes of the graph that edges to be left out connect; by edge type if the subgraph is
                heterogeneous. All edges between two such nodes are left out.
            assume_num_node_within_int32: does not matter: ids of any size are compared exactly.

        Raises:
            InputError: one of the two is heterogeneous and the other is not, or edges of a different shape.
        """
        csc, ids = by_type(self.sampled_csc), by_type(self.original_edge_ids)
        for name, drop in self.edges_to_exclude(edges).items():
            if drop.numel() == 0:
                continue
            part, keep = csc[name], torch.ones_like(csc[name].indices, dtype=torch.bool)
            keep[drop] = False
            indptr = part.indptr - torch.searchsorted(drop, part.indptr.long()).to(part.indptr.dtype)
            csc[name] = type(part)(indptr=indptr, indices=part.indices[keep])
            if ids.get(name) is not None:
                ids[name] = ids[name][keep]
        return type(self)(
            sampled_csc=as_given(csc),
            original_column_node_ids=self.original_column_node_ids,
            original_row_node_ids=self.original_row_node_ids,
            original_edge_ids=None if self.original_edge_ids is None else as_given(ids),
        )

    def edges_to_exclude(self, edges: Nodes) -> dict[str | None, Tensor]:
        """Return the positions of the edges that :meth:`exclude_edges` leaves out by edge type (``None``: untyped)."""
        hetero = isinstance(self.sampled_csc, dict)
        if hetero != isinstance(edges, dict):
            raise InputError(
                f"Expected the edges to exclude {'by edge type' if hetero else 'without edge types'}, as the subgraph "
                f"is {'heterogeneous' if hetero else 'homogeneous'}; got a {type(edges).__name__}."
            )
        csc, pairs = by_type(self.sampled_csc), by_type(edges)
        rows, columns = by_type(self.original_row_node_ids), by_type(self.original_column_node_ids)
        found = {}
        for name in csc.keys() & pairs.keys():
            src, dst = ends_of(name)
            found[name] = _edges_between(csc[name], rows.get(src), columns.get(dst), pairs[name])
        return found

    def to_pyg(self, x: Any) -> PyGLayerData:
        """Return the arguments of a layer of PyG: ``layer(*subgraph.to_pyg(x))``.

        The target nodes of each type are the first of its source nodes, as in subgraphs that samplers make.

        Args:
            x: features of the rows ``[num_rows, ...]``; by node type if the subgraph is heterogeneous.

        Raises:
            InputError: features by type for a homogeneous subgraph, or vice versa; too few types or nodes.
        """
        hetero = isinstance(self.sampled_csc, dict)
        if hetero != isinstance(x, dict):
            raise InputError(
                f"Expected features {'by node type' if hetero else 'without types'}, as the subgraph is "
                f"{'heterogeneous' if hetero else 'homogeneous'}; got a {type(x).__name__}."
            )
        features, targets, edges, sizes = by_type(x), {}, {}, {}
        for name, csc in by_type(self.sampled_csc).items():
            src, dst = ends_of(name)
            if src not in features or dst not in features:
                raise InputError(f"Expected features of both ends of {name!r}, got those of {list(x)}. Add the others.")
            target, num_columns = features[dst], csc.indptr.numel() - 1
            if target.size(0) < num_columns:
                raise InputError(
                    f"Expected features of at least {num_columns} nodes, got {target.size(0)}. Pass all rows."
                )
            targets[dst], sizes[name] = target[:num_columns], (features[src].size(0), num_columns)
            edges[name] = torch.stack((csc.indices, columns_of_edges(csc))).long()
        return PyGLayerData((x, as_given(targets)), as_given(edges), as_given(sizes))

    def __repr__(self) -> str:
        names = ("sampled_csc", "original_row_node_ids", "original_edge_ids", "original_column_node_ids")
        return show(type(self).__name__, {name: getattr(self, name) for name in names})


class SampledSubgraphImpl(SampledSubgraph):
    """A sampled subgraph of a :class:`FusedCSCSamplingGraph`."""


def _edges_between(csc: Any, rows: Tensor | None, columns: Tensor | None, pairs: Tensor) -> Tensor:
    """Return the positions of edges that connect pairs ``[n, 2]``, ascending; ``None``: rows, or columns, are nodes."""
    src, dst = (ids.long() for ids in split_pairs(pairs))
    sources, destinations = torch.unique(src), torch.unique(dst)
    if sources.numel() == 0:
        return src.new_empty(0)
    wanted = torch.unique(_place(sources, src) + sources.numel() * _place(destinations, dst))
    # Few columns are destinations of pairs: the rest of their edges is not looked at.
    nodes = torch.arange(csc.indptr.numel() - 1, device=csc.indptr.device) if columns is None else columns.long()
    place = _place(destinations, nodes)
    edge = of_edges(csc, destinations[place] == nodes).nonzero().view(-1)
    ends = csc.indices[edge].long()
    ends = ends if rows is None else rows.long()[ends]
    source = _place(sources, ends)
    code = source + sources.numel() * of_edges(csc, place)[edge]
    return edge[(sources[source] == ends) & (wanted[_place(wanted, code)] == code)]


def _place(values: Tensor, wanted: Tensor) -> Tensor:
    """Return the position of each wanted value in sorted values, at least one; of others, any position."""
    return torch.searchsorted(values, wanted.contiguous()).clamp_(max=values.numel() - 1)


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
