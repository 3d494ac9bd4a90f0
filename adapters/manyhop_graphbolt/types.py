"""Values by type, the edges and layers of a minibatch, what is common to pipes, and names of GraphBolt."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.utils.data import IterDataPipe

from manyhop.arguments import as_ids, as_tensor
from manyhop.errors import InputError
from manyhop.graph import EdgeType
from manyhop.system.arrays import describe
from manyhop_dgl.samplers.tensors import Composite, apply_nested

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


_SHARED = "placement='shared', or pass the graph to the processes that you start"
_OVERLAP = "none of the stages by which GraphBolt overlaps others: here they always overlap"
GONE = {
    **dict.fromkeys(("negative_srcs", "negative_dsts"), "seeds with labels and indexes"),
    **dict.fromkeys(("compacted_negative_srcs", "compacted_negative_dsts"), "compacted_seeds with labels and indexes"),
    **dict.fromkeys(("compacted_node_pairs", "positive_node_pairs", "negative_node_pairs"), "compacted_seeds"),
    **dict.fromkeys(("copy_to_shared_memory", "load_from_shared_memory"), _SHARED),
    **dict.fromkeys(
        ("buffer", "mark_end", "wait", "wait_future", "fetch_insubgraph_data", "sample_per_layer"), _OVERLAP
    ),
    "node_pairs": "seeds",
    "add_reverse_edges_2": "add_reverse_edges",
    "sample_negative_edges_uniform_2": "sample_negative_edges_uniform",
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
}
"""Names of GraphBolt that are not supported, and their replacements."""


def missing(owner: str, name: str) -> AttributeError:
    """Return the error of an attribute that does not exist."""
    if name in GONE:
        return AttributeError(f"{name} is not part of manyhop's GraphBolt. Use {GONE[name]}.", name=name)
    text = f"{owner} has no {name!r}. docs/dgl/graphbolt-names.md lists the names that are supported."
    return AttributeError(text, name=name)


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


Kind = TypeVar("Kind", bound=type[Any])

_functions: dict[str, Any] = {}


class DataPipe(IterDataPipe[Any]):
    """A torch ``IterDataPipe`` that finds this package's functional forms first.

    DGL's own GraphBolt may have registered names such as ``sample_neighbor`` in the same process.
    """

    def __getattr__(self, name: str) -> Any:
        if name in _functions:
            return functools.update_wrapper(functools.partial(_functions[name], self), _functions[name], ("__doc__",))
        if name in GONE:
            raise missing("a pipe", name)
        return super().__getattr__(name)


def functional_datapipe(name: str) -> Callable[[Kind], Kind]:
    """Let ``datapipe.name(...)`` be ``Class(datapipe, ...)``, for pipes of any kind."""

    def register(kind: Kind) -> Kind:
        _functions[name] = kind
        if name not in IterDataPipe.functions:  # otherwise DGL's own GraphBolt was first
            IterDataPipe.register_datapipe_as_function(name, kind)
        return kind

    return register


def move(value: object, device: torch.device | str, non_blocking: bool, known: dict[int, object]) -> object:
    """Move everything in ``value`` that can be moved to a device; ``known`` has the copies of tensors, by their id."""

    def move_one(part: object) -> object:
        if isinstance(part, Tensor):
            if id(part) not in known:
                known[id(part)] = part.to(device, non_blocking=non_blocking)
            return known[id(part)]
        if isinstance(part, Movable) and type(part).to is Movable.to:  # else it is the user's own
            return part.to(device, non_blocking, known=known)
        return part.to(device) if hasattr(part, "to") else part

    return apply_nested(value, move_one)


class Movable(Composite):
    """The base of objects whose attributes can be moved in place."""

    def to(
        self, device: torch.device | str, non_blocking: bool = False, *, known: dict[int, object] | None = None
    ) -> Self:
        """Move the attributes to a device, in place, and return ``self``; ``known``: see :func:`move`."""
        known = {} if known is None else known
        for name in self.moving():
            value = getattr(self, name)
            if value is not None:  # as most are, of a minibatch
                setattr(self, name, move(value, device, non_blocking, known))
        return self


def show(title: str, named: dict[str, object]) -> str:
    """Format ``title(name=value, ...)``, one name per line, with the lines of a value below each other."""
    lines = []
    for name, value in named.items():
        text = str(value)
        if isinstance(value, list):
            text = "[" + ",\n".join(map(str, value)).replace("\n", "\n ") + "]"
        lines.append(f"{name}=" + text.replace("\n", "\n" + " " * (len(name) + 1)))
    indent = " " * (len(title) + 1)
    return f"{title}(" + f",\n{indent}".join(line.replace("\n", "\n" + indent) for line in lines) + ")"


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
