"""The edges that were sampled for one layer, and the same without given edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from manyhop.arguments import as_ids, as_tensor
from manyhop.errors import InputError
from manyhop.system.arrays import describe
from manyhop_graphbolt.pipes import Movable, show
from manyhop_graphbolt.types import Nodes, etype_str_to_tuple

Excluded: TypeAlias = Tensor | dict[str, Tensor]


def split_pairs(pairs: object) -> tuple[Tensor, Tensor]:
    """Return sources and destinations of pairs ``[n, 2]``."""
    what = "pairs of nodes"
    both = as_tensor(what, pairs) if isinstance(pairs, Tensor) else None
    if both is None or both.dim() != 2 or both.shape[1] != 2:
        advice = " Pass torch.stack(pairs, dim=1)." if isinstance(pairs, tuple) else ""
        raise InputError(f"Expected {what} as a tensor [n, 2], got {describe(pairs)}.{advice}")
    return as_ids(what, both[:, 0]), as_ids(what, both[:, 1])


def edges_to_drop(csc: Any, rows: Tensor | None, columns: Tensor | None, pairs: Tensor) -> Tensor:
    """Return the positions of edges that connect pairs ``[n, 2]``, ascending; ``None``: rows, or columns, are nodes."""
    src, dst = split_pairs(pairs)
    indptr: Tensor = csc.indptr.long()
    indices: Tensor = csc.indices.long()
    if columns is None:
        columns = torch.arange(indptr.numel() - 1, device=indptr.device)
    sources, destinations = torch.unique(src.long()), torch.unique(dst.long())
    if sources.numel() == 0:
        return indptr.new_empty(0)
    wanted = torch.unique(_place(sources, src.long()) + sources.numel() * _place(destinations, dst.long()))
    place_of_column, is_there = _find(destinations, columns.long())
    hit = is_there.nonzero().view(-1)
    begin, degree = indptr[hit], indptr[hit + 1] - indptr[hit]
    which = torch.arange(hit.numel(), device=hit.device).repeat_interleave(degree)
    edge = torch.arange(which.numel(), device=hit.device) + (begin - (degree.cumsum(0) - degree))[which]
    neighbor = indices[edge]
    place_of_row, source_is_there = _find(sources, neighbor if rows is None else rows.long()[neighbor])
    code = place_of_row + sources.numel() * place_of_column[hit][which]
    return edge[source_is_there & _find(wanted, code)[1]].sort().values


def without(csc: Any, edge_ids: Tensor | None, drop: Tensor) -> tuple[Any, Tensor | None]:
    """Return the edges and their ids, without those at some positions."""
    if drop.numel() == 0:
        return csc, edge_ids
    keep = torch.ones(csc.indices.numel(), dtype=torch.bool, device=csc.indices.device)
    keep[drop] = False
    indptr = csc.indptr - torch.searchsorted(drop, csc.indptr.long()).to(csc.indptr.dtype)
    return type(csc)(indptr=indptr, indices=csc.indices[keep]), None if edge_ids is None else edge_ids[keep]


def _place(values: Tensor, wanted: Tensor) -> Tensor:
    """Return the position of each wanted value in the sorted ``values``, which contain all of them."""
    return torch.searchsorted(values, wanted.contiguous())


def _find(values: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the position of each wanted value in the sorted ``values`` (at least one), and whether it is found."""
    place = torch.searchsorted(values, wanted.contiguous()).clamp_(max=values.numel() - 1)
    return place, values[place] == wanted


Self = TypeVar("Self", bound="SampledSubgraph")


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


class PyGLayerData(NamedTuple):
    """The arguments of a PyG layer. For a heterogeneous subgraph ``x`` has dictionaries by node type, the others are
    dictionaries by edge type."""

    x: Any
    """Features of the source nodes ``[num_rows, ...]`` and of the target nodes ``[num_columns, ...]``."""

    edge_index: Nodes
    """``[2, num_edges] int64``: source and target of each edge."""

    size: tuple[int, int] | dict[str, tuple[int, int]]
    """Number of source nodes and of target nodes."""


class SampledSubgraph(Movable):
    """The base of sampled subgraphs.

    The values of a heterogeneous one are dictionaries, by node type or by edge type (``"src:rel:dst"``).
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

    def exclude_edges(self: Self, edges: Excluded, assume_num_node_within_int32: bool = True) -> Self:
        """Return the subgraph without some edges, with all nodes.

        Args:
            edges: ``[n, 2]`` nodes of the graph that edges to be left out connect; by edge type if the subgraph is
                heterogeneous. All edges between two such nodes are left out.
            assume_num_node_within_int32: does not matter: ids of any size are compared exactly.

        Raises:
            InputError: one of the two is heterogeneous and the other is not, or edges of a different shape.
        """
        drop = self.edges_to_exclude(edges)
        csc, ids = self.sampled_csc, self.original_edge_ids
        if not isinstance(csc, dict):
            assert not isinstance(ids, dict)
            return self._with(*without(csc, ids, drop[None]))
        csc, ids_left = dict(csc), dict(ids) if isinstance(ids, dict) else None
        for name, of_type in drop.items():
            assert name is not None
            csc[name], kept = without(csc[name], _of(ids, name), of_type)
            if ids_left is not None and kept is not None:
                ids_left[name] = kept
        return self._with(csc, ids_left)

    def edges_to_exclude(self, edges: Excluded) -> dict[str | None, Tensor]:
        """Return the positions of the edges that :meth:`exclude_edges` leaves out, by edge type; ``None``: of the one.

        Raises:
            InputError: see there.
        """
        hetero = isinstance(self.sampled_csc, dict)
        if hetero != isinstance(edges, dict):
            raise InputError(
                f"Expected the edges to exclude {'by edge type' if hetero else 'without edge types'}, as the subgraph "
                f"is {'heterogeneous' if hetero else 'homogeneous'}; got a {type(edges).__name__}."
            )
        csc, rows, columns = self.sampled_csc, self.original_row_node_ids, self.original_column_node_ids
        if not isinstance(edges, dict):
            assert not isinstance(rows, dict)
            assert not isinstance(columns, dict)
            return {None: edges_to_drop(csc, rows, columns, edges)}
        found: dict[str | None, Tensor] = {}
        for name in csc.keys() & edges.keys():
            src, _, dst = etype_str_to_tuple(name)
            found[name] = edges_to_drop(csc[name], _of(rows, src), _of(columns, dst), edges[name])
        return found

    def to_pyg(self, x: Any) -> PyGLayerData:
        """Return the arguments of a layer of PyG: ``layer(*subgraph.to_pyg(x))``.

        The target nodes of each type are the first of its source nodes, as in subgraphs that samplers make.

        Args:
            x: features of the rows ``[num_rows, ...]``; by node type if the subgraph is heterogeneous.

        Raises:
            InputError: features by type for a homogeneous subgraph, or vice versa; too few types or nodes.
        """
        csc = self.sampled_csc
        if isinstance(csc, dict) != isinstance(x, dict):
            raise InputError(
                f"Expected features {'by node type' if isinstance(csc, dict) else 'without types'}, as the subgraph is "
                f"{'heterogeneous' if isinstance(csc, dict) else 'homogeneous'}; got a {type(x).__name__}."
            )
        if not isinstance(csc, dict):
            target, edge_index, size = _pyg_layer(csc, x, x)
            return PyGLayerData((x, target), edge_index, size)
        targets, edges, sizes = {}, {}, {}
        for name, part in csc.items():
            src, _, dst = etype_str_to_tuple(name)
            if src not in x or dst not in x:
                raise InputError(f"Expected features of both ends of {name!r}, got those of {list(x)}. Add the others.")
            targets[dst], edges[name], sizes[name] = _pyg_layer(part, x[src], x[dst])
        return PyGLayerData((x, targets), edges, sizes)

    def _with(self: Self, csc: CSC, edge_ids: Nodes | None) -> Self:
        return type(self)(  # type: ignore[call-arg]  # as subclasses are called
            sampled_csc=csc,
            original_column_node_ids=self.original_column_node_ids,
            original_row_node_ids=self.original_row_node_ids,
            original_edge_ids=edge_ids,
        )

    def __repr__(self) -> str:
        return show(type(self).__name__, {name: getattr(self, name) for name in _FIELDS})


_FIELDS = ("sampled_csc", "original_row_node_ids", "original_edge_ids", "original_column_node_ids")


@dataclass(eq=False, repr=False)
class SampledSubgraphImpl(SampledSubgraph):
    """A sampled subgraph of a :class:`FusedCSCSamplingGraph`.

    Raises:
        InputError: no edges, or edge types that are not ``"src:rel:dst"``.
    """

    sampled_csc: Any = None
    original_column_node_ids: Nodes | None = None
    original_row_node_ids: Nodes | None = None
    original_edge_ids: Nodes | None = None

    def __post_init__(self) -> None:
        csc = self.sampled_csc
        for part in csc.values() if isinstance(csc, dict) else (csc,):
            if not (hasattr(part, "indptr") and hasattr(part, "indices")):
                raise InputError(
                    f"Expected sampled_csc as CSCFormatBase, or those by edge type, got a {type(part).__name__}."
                )
        for name in csc if isinstance(csc, dict) else ():
            if not isinstance(name, str):
                raise InputError(f"Expected edge types as strings 'src:rel:dst', got {name!r}.")
            etype_str_to_tuple(name)


def _of(values: Nodes | None, name: str) -> Tensor | None:
    """Return the value of a type; ``None`` without values."""
    if values is None:
        return None
    assert isinstance(values, dict)
    return values[name]


def _pyg_layer(csc: CSCFormatBase, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Return features of the columns, edges ``[2, num_edges]``, and the number of rows and columns."""
    num_columns = csc.indptr.numel() - 1
    if target.size(0) < num_columns:
        raise InputError(f"Expected features of at least {num_columns} nodes, got {target.size(0)}. Pass all rows.")
    edge_index = torch.stack((csc.indices, columns_of_edges(csc))).long()
    return target[:num_columns], edge_index, (source.size(0), num_columns)


def columns_of_edges(csc: CSCFormatBase) -> Tensor:
    """Return ``[num_edges]``: the column of each edge, of the dtype of ``indices``."""
    columns = torch.arange(csc.indptr.numel() - 1, dtype=csc.indices.dtype, device=csc.indices.device)
    return columns.repeat_interleave(csc.indptr.diff(), output_size=csc.indices.numel())
