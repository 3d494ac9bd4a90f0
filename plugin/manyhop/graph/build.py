"""Build the topology: from edge lists or compressed tables to one CSC per edge type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from manyhop.arguments import check_range
from manyhop.errors import GraphError
from manyhop.graph import columns
from manyhop.graph.columns import roomy
from manyhop.graph.csc import CSC, EdgeType, Graph, NodeType, of_type
from manyhop.graph.deferred import DeferredCSC, PartCSC
from manyhop.system.memory import require_memory

_BLOCK = 1 << 24  # edges

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, kw_only=True)
class EdgeInput:
    """Edges of one type as the user has them: an edge list (``row``, ``col``) or compressed (``row``, ``colptr``)."""

    row: Tensor
    """``[num_edges]`` integer: source node of each edge."""

    col: Tensor | None = None
    """``[num_edges]`` integer: destination node of each edge. Either this or ``colptr``."""

    colptr: Tensor | None = None
    """``[num_dst + 1]`` integer: where each destination's edges begin in ``row``."""

    edge_id: Tensor | None = None
    """``[num_edges]`` integer: the user's id of each edge; ``None``: its position."""

    weight: Tensor | None = None
    """``[num_edges]`` real, by the user's edge id: non-negative and finite."""

    time: Tensor | None = None
    """``[num_edges] int64`` time keys, by the user's edge id."""

    part: Tensor | None = None
    """``[2] int64``: where each rank has a part of the edges, the id of its first one, and how many all ranks have;
    ``None``: these are all edges. Only an edge list, without ``edge_id``, ``weight`` and ``time``."""

    is_sorted: bool = False
    """The user vouches that edges are grouped by destination (and by time inside, where times are used). It is checked;
    without it the order is found out."""

    reversed: bool = False
    """Whether these are the user's edges from destination to source. Errors name the user's edge type and ends."""

    @property
    def ends(self) -> tuple[str, str]:
        """The user's names of ``row`` and ``col``."""
        return ("destination", "source") if self.reversed else ("source", "destination")


def build_graph(
    num_nodes: Mapping[NodeType, int],
    edges: Mapping[EdgeType, EdgeInput],
    *,
    node_time: Mapping[NodeType, Tensor] | None = None,
    defer: bool = False,
) -> Graph:
    """Build the topology that samplers work on.

    Arrays that already have the stored form (int32 ids in order of destination) are not copied: do not
    change them in place afterwards.

    Args:
        num_nodes: node type -> number of nodes, in the order of the node types.
        edges: edge type -> its edges, in the order of the edge types.
        node_time: node type -> ``[num_nodes] int64`` time keys. An edge type without times of edges
            has those of its source nodes.
        defer: whether large edge lists, without times and weights, are grouped by destination when somebody reads the
            tables, and where: a GPU groups them by itself, those in its memory without copies on the host. Until then
            they must not be changed in place.

    Raises:
        GraphError: ids out of range, unequal lengths, wrong dtypes, weights that are negative or not finite, a claim of
            being sorted that is not true.
        CapacityError: the tables do not fit in memory.
    """
    node_time = dict(node_time or {})
    for node_type, time in node_time.items():
        if node_type not in num_nodes:
            raise GraphError(
                f"Expected times of the node types {list(num_nodes)}, got the unknown node type '{node_type}'."
            )
        _expect_length(f"times of node type '{node_type}'", time, num_nodes[node_type])
    csc = {}
    for edge_type, edge in edges.items():
        named = (edge_type[2], edge_type[1], edge_type[0]) if edge.reversed else edge_type
        for end in (named[0], named[2]):
            if end not in num_nodes:
                raise GraphError(f"Edge type {named} uses the unknown node type '{end}'. Known: {list(num_nodes)}.")
        src_time = node_time.get(edge_type[0]) if edge.time is None else None
        csc[edge_type] = _build_csc(named, edge, num_nodes[edge_type[0]], num_nodes[edge_type[2]], src_time, defer)
    return Graph(num_nodes=dict(num_nodes), csc=csc, node_time=node_time)


def time_key(time: Tensor, *, floating: bool) -> Tensor:
    """Times as ``int64`` numbers of the same order.

    Args:
        time: ``[n]`` integer or floating-point times.
        floating: whether any time of the graph is floating-point; then all are mapped through float64, so that they
            compare with each other.

    Raises:
        GraphError: a time is NaN, or no number at all.
    """
    if time.dtype == torch.bool or time.is_complex():
        raise GraphError(f"Expected integer or floating-point times, got {time.dtype}.")
    if not floating:
        return time.to(torch.int64)
    if time.is_floating_point() and bool(time.isnan().any()):
        raise GraphError("Expected times that can be ordered, got NaN. Fill in or drop the missing times.")
    bits = (time.to(torch.float64) + 0.0).view(torch.int64)  # + 0.0 turns -0.0 into 0.0
    return torch.where(bits >= 0, bits, bits ^ 0x7FFF_FFFF_FFFF_FFFF)


def weight_tables(edge_type: EdgeType, weight: Tensor, perm: Tensor | None, colptr: Tensor) -> dict[str, Tensor | None]:
    """Return ``weight``, ``alias`` and ``num_positive`` of a CSC.

    Args:
        edge_type: for errors.
        weight: ``[num_edges]`` real, by edge id.
        perm: ``[num_edges]``: stored position -> edge id; ``None`` if they agree.
        colptr: ``[num_dst + 1] int64``.

    Raises:
        GraphError: weights of wrong length or dtype, negative, not finite, or of infinite sum.
    """
    _expect_length(f"weights{of_type(edge_type)}", weight, int(colptr[-1]))
    if weight.dtype == torch.bool or weight.is_complex():
        raise GraphError(f"Expected real weights{of_type(edge_type)}, got {weight.dtype}.")
    weight = weight.detach().to(torch.float64)
    bad = ~torch.isfinite(weight) | (weight < 0)
    if bool(bad.any()):
        at = int(bad.nonzero()[0])
        raise GraphError(
            f"Expected weights that are finite and not negative{of_type(edge_type)}, got {float(weight[at])} for "
            f"edge {at} ({int(bad.sum())} such weights). Clean them before building the loader."
        )
    weight = weight.contiguous() if perm is None else weight[perm.long()]
    from manyhop.graph.column_kernels import fill_aliases

    alias = roomy(weight.numel(), np.int64)
    num_positive = torch.empty(colptr.numel() - 1, dtype=torch.int64, device="cpu")
    finite = fill_aliases(colptr.numpy(), weight.numpy(), alias.numpy().view(np.uint64), num_positive.numpy())
    if not finite:
        raise GraphError(
            f"Expected the weights of a node's edges{of_type(edge_type)} to have a finite sum. Scale them down."
        )
    all_positive = int(num_positive.sum()) == weight.numel()
    return {"weight": weight, "alias": alias, "num_positive": None if all_positive else num_positive}


def _build_csc(
    edge_type: EdgeType, edge: EdgeInput, num_src: int, num_dst: int, src_time: Tensor | None, defer: bool
) -> CSC:
    num_edges = edge.row.numel()
    check_ids(edge_type, edge.ends[0], edge.row, num_src)
    if edge.part is not None:
        return _part(edge_type, edge, num_src, num_dst, src_time)
    small = 4 if max(num_src, num_dst, num_edges) < 2**31 else 8
    grouped = columns.fits(num_src, num_dst, num_edges)
    timed = edge.time is not None or src_time is not None
    ends = [edge.row] if edge.col is None else [edge.row, edge.col]
    waits = defer and grouped and not timed and edge.weight is None and edge.edge_id is None
    waits = waits and not any(tensor.is_inference() for tensor in ends)  # torch does not count their changes
    if waits and edge.col is not None and edge.colptr is None and _on_gpu(*ends):
        _expect_length(f"{edge.ends[1]} nodes{of_type(edge_type)}", edge.col, num_edges)
        check_ids(edge_type, edge.ends[1], edge.col, num_dst)
        in_order = _is_in_order(edge_type, edge, edge.col, None)
        return DeferredCSC(edge.row, edge.col, num_src, num_dst, in_order=in_order)
    edge = _on_host(edge)
    extras = 16 * (edge.weight is not None) + 10 * timed
    sorting = 0
    if timed or edge.colptr is None:  # the tables, and memory for sorting
        sorting = 16 if grouped else 4 * small + 8
    narrowing = small if sorting == 0 and edge.row.dtype != (torch.int32 if num_src <= 2**31 else torch.int64) else 0
    require_memory(
        f"The topology{of_type(edge_type)} ({num_edges} edges)",
        num_edges * (sorting + narrowing + extras) + 16 * num_dst,
        "Use fewer edges, a machine with more memory, or a graph on disk (manyhop convert).",
    )
    time = None
    if edge.time is not None:
        _expect_length(f"times{of_type(edge_type)}", edge.time, num_edges)
        time = edge.time if edge.edge_id is None else edge.time[edge.edge_id.long()]
    elif src_time is not None:
        time = src_time[edge.row.long()]
    if (edge.col is None) == (edge.colptr is None):
        raise GraphError(f"Expected either col or colptr{of_type(edge_type)}, got both or neither.")
    colptr = None
    if edge.colptr is not None:
        colptr = check_colptr(edge_type, edge.colptr, num_dst, num_edges)
        col = torch.repeat_interleave(torch.diff(colptr)) if time is not None else None
    else:
        assert edge.col is not None
        _expect_length(f"{edge.ends[1]} nodes{of_type(edge_type)}", edge.col, num_edges)
        check_ids(edge_type, edge.ends[1], edge.col, num_dst)
        col = edge.col
    row, perm = edge.row, edge.edge_id
    if col is not None and not _is_in_order(edge_type, edge, col, time):
        if waits:
            return DeferredCSC(row, col, num_src, num_dst)
        stored = columns.group(row, col, num_src, num_dst, time)
        colptr, row, time = stored.colptr, stored.row, stored.time
        perm = stored.position if perm is None else perm[stored.position.long()]
    else:
        time = None if time is None else roomy(num_edges, np.int64).copy_(time)
    if colptr is None:
        assert col is not None
        colptr = columns.pointers(col, num_dst)
    degree = torch.diff(colptr)
    if num_dst > 0 and int(degree.max()) >= 2**32:
        raise GraphError(f"Expected fewer than 2^32 edges{of_type(edge_type)} per node, got {int(degree.max())}.")
    weights = {} if edge.weight is None else weight_tables(edge_type, edge.weight, perm, colptr)
    return CSC(
        num_src=num_src,
        colptr=colptr,
        row=_own(row, num_src),
        perm=None if perm is None else _own(perm, num_edges),
        time=time,
        **weights,
    )


def _part(edge_type: EdgeType, edge: EdgeInput, num_src: int, num_dst: int, src_time: Tensor | None) -> PartCSC:
    assert edge.part is not None
    if edge.col is None or edge.edge_id is not None or edge.weight is not None or edge.time is not None:
        raise GraphError(
            f"Expected a part of the edges{of_type(edge_type)} as an edge list, without weights and times of edges, "
            "got more. Use times of nodes, or pass all edges on every rank."
        )
    _expect_length(f"{edge.ends[1]} nodes{of_type(edge_type)}", edge.col, edge.row.numel())
    check_ids(edge_type, edge.ends[1], edge.col, num_dst)
    first, total = edge.part.tolist()
    time = None if src_time is None else src_time[edge.row.long()]
    return PartCSC(edge.row, edge.col, num_src, num_dst, first=first, total=total, time=time)


def _is_in_order(edge_type: EdgeType, edge: EdgeInput, col: Tensor, time: Tensor | None) -> bool:
    """Return whether edges are grouped by ``col`` and, with times, by time inside.

    Raises:
        GraphError: they are not, although the user vouches for it.
    """
    for begin in range(0, max(0, col.numel() - 1), _BLOCK):  # few graphs need more than the first block
        block = col[begin : begin + _BLOCK + 1]
        up = block[1:] >= block[:-1]
        if time is not None:
            times = time[begin : begin + _BLOCK + 1]
            up &= (block[1:] != block[:-1]) | (times[1:] >= times[:-1])
        if bool(up.all()):
            continue
        if edge.is_sorted:
            at = begin + int((~up).nonzero()[0])
            raise GraphError(
                f"is_sorted=True, but edges {at} and {at + 1}{of_type(edge_type)} are not in order of {edge.ends[1]}"
                f"{' and time' if time is not None else ''}. Sort them, or pass is_sorted=False."
            )
        return False
    return True


def _on_gpu(*tensors: Tensor) -> bool:
    return all(tensor.is_cuda for tensor in tensors)


def _on_host(edge: EdgeInput) -> EdgeInput:
    given = {name: getattr(edge, name) for name in ("row", "col", "colptr", "edge_id", "weight", "time")}
    return replace(edge, **{name: tensor.cpu() for name, tensor in given.items() if tensor is not None})


def _own(ids: Tensor, bound: int) -> Tensor:
    """Return ids as contiguous int32 if they fit, otherwise int64."""
    dtype = torch.int32 if bound <= 2**31 else torch.int64
    if ids.dtype == dtype and ids.is_contiguous():
        return ids
    return roomy(ids.numel(), np.int32 if bound <= 2**31 else np.int64).copy_(ids)


def check_colptr(edge_type: EdgeType, colptr: Tensor, num_dst: int, num_edges: int) -> Tensor:
    """Return column pointers ``[num_dst + 1]`` as ``int64``; GraphError unless they rise from 0 to ``num_edges``."""
    _expect_length(f"colptr{of_type(edge_type)}", colptr, num_dst + 1)
    colptr = colptr.to(torch.int64).contiguous()
    falls = colptr[1:] < colptr[:-1]  # differences of damaged numbers may overflow
    if int(colptr[0]) != 0 or int(colptr[-1]) != num_edges or bool(falls.any()):
        at = f"; it falls after entry {int(falls.nonzero()[0])}" if bool(falls.any()) else ""
        raise GraphError(
            f"Expected colptr{of_type(edge_type)} to rise from 0 to the number of edges ({num_edges}), "
            f"got {int(colptr[0])} to {int(colptr[-1])}{at}."
        )
    return colptr


def check_ids(edge_type: EdgeType, end: str, ids: Tensor, bound: int) -> None:
    """Raise GraphError unless ``ids`` are ``[num_edges]`` integers in ``[0, bound)``; ``end`` is for errors."""
    if ids.dtype not in INTEGERS or ids.dim() != 1:
        raise GraphError(
            f"Expected {end} nodes{of_type(edge_type)} as a 1-dimensional integer tensor, "
            f"got {ids.dtype} of shape {list(ids.shape)}."
        )
    advice = "Check edge_index, or set num_nodes."
    check_range(f"{end} nodes{of_type(edge_type)}", ids, bound, GraphError, advice)


def _expect_length(what: str, tensor: Tensor, length: int) -> None:
    if tensor.dim() != 1 or tensor.numel() != length:
        raise GraphError(f"Expected {what} of shape [{length}], got {list(tensor.shape)}.")
