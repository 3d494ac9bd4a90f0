"""A PyG ``GraphStore`` that checks its edges; attributes of feature stores."""

from __future__ import annotations

import copy
import dataclasses
import math
import operator
from typing import Any

import numpy as np
import torch
import torch_geometric.data
from torch import Tensor
from torch_geometric.data import TensorAttr
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout

import manyhop
from manyhop.arguments import as_ids, as_tensor, check_range
from manyhop.errors import FeatureError, GraphError, InputError
from manyhop.features import DistributedRows, ShardedRows
from manyhop.graph import EdgeType
from manyhop.memory.places import Place
from manyhop.memory.stores import NodeRows, TopologyPlace, check_graph_place, counts_of_parts, place_for_topology
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop.system.arrays import describe


class ExactAttr(TensorAttr):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``TensorAttr`` that accepts arrays as index (PyG compares them with "unset" entry by entry)."""

    @classmethod
    def cast(cls, *args: object, **kwargs: object) -> TensorAttr:
        attr = super().cast(*args, **kwargs)
        return cls(attr.group_name, attr.attr_name, attr.index) if type(attr) is TensorAttr else attr

    def is_set(self, key: str) -> bool:
        return getattr(self, key) is not TensorAttr.index

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorAttr):
            return NotImplemented
        fields = (field.name for field in dataclasses.fields(self))
        return all(_same(getattr(self, name), getattr(other, name, None)) for name in fields)


def _same(a: object, b: object) -> bool:
    if isinstance(a, Tensor | np.ndarray) or isinstance(b, Tensor | np.ndarray):
        return a is b
    return bool(a == b)


def is_edge_type(group: object) -> bool:
    """Return whether a group is ``(source, relation, destination)``."""
    return isinstance(group, tuple) and len(group) == 3 and all(isinstance(part, str) for part in group)


def is_whole(index: object) -> bool:
    """Return whether an index selects all rows."""
    return index is None or (isinstance(index, slice) and index == slice(None))


def num_rows_of(tensor: object) -> int | None:
    """Number of rows of anything that has some; ``None`` for anything else."""
    if isinstance(tensor, ShardedRows | DistributedRows):
        return len(tensor)
    if isinstance(tensor, Tensor | np.ndarray):
        is_nested = isinstance(tensor, Tensor) and tensor.is_nested
        return int(tensor.shape[0]) if tensor.ndim > 0 and not is_nested else None
    if isinstance(tensor, str | bytes | list | tuple | dict) or not hasattr(tensor, "__getitem__"):
        return None
    return len(tensor) if hasattr(tensor, "__len__") else None


def row_index(index: object, num_rows: int | None, name: str) -> Tensor | slice | int:
    """Return an index as row numbers ``[count] int64 or int32``, a slice forwards, or one row number."""
    assert num_rows is not None
    if isinstance(index, slice):
        begin, end, step = index.indices(num_rows)
        return slice(begin, end, step) if step > 0 else torch.arange(num_rows)[list(range(begin, end, step))]
    if isinstance(index, int | np.integer) and not isinstance(index, bool):
        if not 0 <= index < num_rows:
            raise FeatureError(f"Expected a row of {name} in [0, {num_rows}), got {index}. Check the ids.")
        return int(index)
    if isinstance(index, Tensor | np.ndarray):
        rows = as_tensor(f"the index of {name}", index, FeatureError)
        if rows.dtype == torch.bool and rows.shape == (num_rows,):
            return rows.nonzero().view(-1)
        return as_ids(f"the index of {name}", rows, error=FeatureError)
    raise FeatureError(
        f"Expected an index of {name} as None, a slice, an integer, or a tensor or array of shape [count] of row "
        f"numbers, got {kind_of(index)}."
    )


def title_of(attr: TensorAttr) -> str:
    """Return the name of an attribute's tensor for errors."""
    return repr(attr.attr_name) if attr.group_name is None else f"{attr.attr_name!r} of {attr.group_name!r}"


def kind_of(value: object) -> str:
    """Return dtype and shape of a tensor, otherwise the class, for errors."""
    if isinstance(value, Tensor):
        return describe(value)
    return (
        f"{value.dtype} of shape {list(value.shape)}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    )


Size = tuple[int | None, int | None]


class GraphStore(torch_geometric.data.GraphStore):  # type: ignore[misc]  # PyG is untyped
    """Store edges by edge type and layout.

    A layout is ``"coo"``, ``(row, col)``, both ``[num_edges]``; ``"csc"``, ``(row, colptr)`` with ``colptr``
    ``[num_dst + 1]``; or ``"csr"``, ``(rowptr, col)`` with ``rowptr`` ``[num_src + 1]``: tensors or arrays of int64 or
    int32. ``edge_type`` is ``None`` in homogeneous graphs. An edge type may have multiple layouts. The id of an edge,
    which selects its features, is its position in the CSC layout if there is one, otherwise in COO, otherwise in CSR.
    Pass ``size``, ``(num_src, num_dst)``: ids alone do not show trailing nodes without edges.

    With ``placement="shared"``, each machine holds all edges once, in memory that its ranks share. All ranks put the
    same edge types in the same order, as ``"coo"``, and each rank puts a part of the edges (possibly none), which are
    concatenated by rank. Two ranks that put the same edges get a ``GraphError``.

    With other placements, the edges stay in this process, and GPUs read the topology that loaders build from them, once
    for all loaders: ``"device"``: a copy on each GPU. ``"pinned"``: page-locked host memory. ``"sharded"``: a part on
    each GPU of a machine (WholeGraph); all ranks create the first loader together, with ``distributed=True``.
    ``"auto"``: the first loader decides.

    With ``placement="distributed"``, no rank has all edges: each rank puts a part, with ``size``, and keeps it. Loaders
    on GPUs distribute them over the GPUs of all ranks, where cuGraph samples them; see docs/scale/cugraph.md. Weights
    and times of edges are not supported.

    Args:
        edge_attr_cls: subclass of PyG's ``EdgeAttr`` with another order of fields; ``None``: ``EdgeAttr``.
        placement: ``"process"``, ``"shared"``, ``"device"``, ``"pinned"``, ``"sharded"``, ``"distributed"`` or
            ``"auto"``.
        rank_timeout: seconds to wait for other ranks (600).

    Raises:
        InputError: arguments that do not make sense; a placement of GPUs without GPUs.
    """

    def __init__(
        self,
        edge_attr_cls: type[EdgeAttr] | None = None,
        *,
        placement: Place = "process",
        rank_timeout: float | None = None,
    ) -> None:
        spread = placement == "distributed"
        check_graph_place(placement, spreads=True)
        if rank_timeout is not None and (placement not in ("shared", "distributed") or not rank_timeout > 0):
            raise InputError(
                "Expected rank_timeout only with placement='shared' or 'distributed', in seconds, more than 0, got "
                f"{rank_timeout!r}."
            )
        super().__init__(edge_attr_cls)
        self._node_rows = NodeRows(False, rank_timeout or DEFAULT_TIMEOUT) if placement == "shared" else None
        self.parts: dict[EdgeType | None, Tensor] | None = {} if spread else None
        """With ``"distributed"``, by edge type: ``[2]``, the id of this rank's first edge, and how many all have."""
        self._timeout = rank_timeout or DEFAULT_TIMEOUT
        self.topology_place = TopologyPlace("distributed") if spread else place_for_topology(placement)
        """Where loaders on GPUs read the topology; ``None``: where each of them decides."""
        self._edges: dict[tuple[EdgeType | None, EdgeLayout], tuple[EdgeAttr, tuple[Tensor, Tensor]]] = {}
        self._converted: dict[tuple[EdgeType | None, EdgeLayout], tuple[Tensor, Tensor, Tensor | None]] = {}

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """Return the attributes of all edges: new objects, in the order of insertion."""
        return [copy.copy(attr) for attr, _ in self._edges.values()]

    def _put_edge_index(self, edge_index: object, edge_attr: EdgeAttr) -> bool:
        edge_type, layout = edge_attr.edge_type, edge_attr.layout
        if self._node_rows is not None:
            edge_index = self._together(edge_index, edge_attr, self._node_rows)
        edges = _checked(edge_index, edge_attr)
        if self.parts is not None:
            self.parts[edge_type] = self._count_parts(edges, edge_attr)
        for other, held in self._edges.values():
            if (other.edge_type is None) != (edge_type is None):
                raise GraphError(
                    f"Expected all edges with an edge type or all without, got {edge_type} and {other.edge_type}. "
                    "Use separate stores for graphs with and without types."
                )
            if other.edge_type == edge_type and other.layout != layout:
                before, now = _num_edges(held, other), _num_edges(edges, edge_attr)
                if before != now:
                    raise GraphError(
                        f"Expected the layouts of {_title(edge_type)} to hold the same edges, got {before} in "
                        f"{other.layout.value} and {now} in {layout.value}. Remove the old ones first."
                    )
        self._forget_converted(edge_type)
        self._edges[edge_type, layout] = copy.copy(edge_attr), edges
        return True

    def _together(self, part: object, attr: EdgeAttr, node_rows: NodeRows) -> tuple[Tensor, Tensor]:
        """Return all edges, of which each rank puts a part."""
        name = f"{attr.layout.value} edges of {_title(attr.edge_type)}"
        if attr.layout != EdgeLayout.COO:
            raise GraphError(
                f"Expected parts of edges as 'coo', got the {name}. Pass (row, col), or share whole tables."
            )
        row, col = _pair(part, name)
        rows, columns = node_rows.join({"rows": row, "columns": col}, name)
        return rows, columns

    def _count_parts(self, edges: tuple[Tensor, Tensor], attr: EdgeAttr) -> Tensor:
        """Return the id of the first edge that this rank has put, and the number of edges of all ranks."""
        name = f"{attr.layout.value} edges of {_title(attr.edge_type)}"
        if attr.layout != EdgeLayout.COO or None in _size(attr.size, name):
            raise GraphError(
                f"Expected parts of edges as 'coo', with size=(num_src, num_dst), got the {name} of size {attr.size}. "
                "Pass (row, col) and the numbers of nodes."
            )
        world = manyhop.init(timeout=self._timeout)
        counts = counts_of_parts(edges, name, f"parts of the {name}", self._timeout)
        return torch.tensor([sum(counts[: world.rank]), sum(counts)])

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        held, edges = self._edges.get((edge_attr.edge_type, edge_attr.layout), (None, None))
        if held is None:
            return None
        other_size = None not in (held.size, edge_attr.size) and tuple(held.size) != tuple(edge_attr.size)
        return None if other_size or (edge_attr.is_sorted and not held.is_sorted) else edges

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        self._forget_converted(edge_attr.edge_type)
        return self._edges.pop((edge_attr.edge_type, edge_attr.layout), None) is not None

    def _forget_converted(self, edge_type: EdgeType | None) -> None:
        self._converted = {key: edges for key, edges in self._converted.items() if key[0] != edge_type}

    def _edge_to_layout(
        self, attr: EdgeAttr, layout: EdgeLayout, store: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the result of ``coo``, ``csc`` or ``csr``; stored conversions keep their permutation for edge ids."""
        key = (attr.edge_type, layout)
        converted = self._converted.get(key)
        if converted is None:
            converted = super()._edge_to_layout(attr, layout, False)
            if store and attr.layout != layout:
                self._converted[key] = converted
        return converted


def _checked(edge_index: object, attr: EdgeAttr) -> tuple[Tensor, Tensor]:
    """Return both tensors of a layout, after checking every entry."""
    name, layout = f"{attr.layout.value} edges of {_title(attr.edge_type)}", attr.layout
    if attr.edge_type is not None and not is_edge_type(attr.edge_type):
        raise GraphError(
            f"Expected an edge type as ('src', 'rel', 'dst'), or None in a homogeneous graph, got {attr.edge_type!r}."
        )
    size = _size(attr.size, name)
    first, second = _pair(edge_index, name)
    for part in (first, second):
        if part.dim() != 1 or part.dtype not in (torch.int32, torch.int64):
            raise GraphError(
                f"Expected the {name} as 1-dimensional tensors of int64 or int32, got {part.dtype} of shape "
                f"{list(part.shape)}. Convert them."
            )
    if layout == EdgeLayout.COO:
        if first.numel() != second.numel():
            raise GraphError(f"Expected the {name} to have as many rows as columns, got {first.numel()} and "
                             f"{second.numel()}.")  # fmt: skip
        _check_ids(first, size[0], name)
        _check_ids(second, size[1], name)
        if attr.is_sorted and bool((second[1:] < second[:-1]).any()):
            raise GraphError(f"Expected the {name} sorted by destination, by is_sorted=True. Leave it out.")
    else:
        ids, ptr = (first, second) if layout == EdgeLayout.CSC else (second, first)
        end = 1 if layout == EdgeLayout.CSC else 0
        _check_pointer(ptr, ids.numel(), size[end], name)
        _check_ids(ids, size[1 - end], name)
    return first, second


def _pair(edge_index: Any, name: str) -> tuple[Tensor, Tensor]:
    try:
        first, second = edge_index
    except (TypeError, ValueError):
        raise GraphError(f"Expected the {name} as a pair of tensors, got {type(edge_index).__name__}.") from None
    return as_tensor(f"the {name}", first, GraphError), as_tensor(f"the {name}", second, GraphError)


def _check_ids(ids: Tensor, num_nodes: int | None, name: str) -> None:
    bound = math.inf if num_nodes is None else num_nodes
    check_range(f"the {name} to have ids", ids, bound, GraphError, "Check the ids and the size.")


def _check_pointer(ptr: Tensor, num_edges: int, num_nodes: int | None, name: str) -> None:
    expected = "[num_nodes + 1]" if num_nodes is None else f"[{num_nodes + 1}]"
    if ptr.numel() == 0 or (num_nodes is not None and ptr.numel() != num_nodes + 1):
        raise GraphError(f"Expected the pointer of the {name} of shape {expected}, got {list(ptr.shape)}.")
    if int(ptr[0]) != 0 or int(ptr[-1]) != num_edges or bool((ptr[1:] < ptr[:-1]).any()):
        raise GraphError(
            f"Expected the pointer of the {name} to rise from 0 to the number of edges, {num_edges}, got {int(ptr[0])} "
            f"to {int(ptr[-1])}. Entry i is where the edges of node i begin."
        )


def _size(size: Any, name: str) -> Size:
    if size is None:
        return None, None
    try:
        src, dst = (None if n is None else operator.index(n) for n in size)
    except (TypeError, ValueError):
        raise GraphError(f"Expected the size of the {name} as (num_src, num_dst), got {size!r}.") from None
    return src, dst


def _num_edges(edges: tuple[Tensor, Tensor], attr: EdgeAttr) -> int:
    return edges[1 if attr.layout == EdgeLayout.CSR else 0].numel()


def _title(edge_type: EdgeType | None) -> str:
    return "the graph" if edge_type is None else repr(edge_type)
