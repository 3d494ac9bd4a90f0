"""Methods of ``DGLGraph`` that layers call in each step, for graphs on torch tensors.

DGL's own go through views, frames and checks, which takes the host longer than the GPU takes for the step. Those here
have the same effect on the frames. They return False, without an effect, where DGL's own must run or to raise; those
for degrees are called for all nodes only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dgl
from dgl.base import ALL, is_all
from dgl.frame import Frame, LazyFeature
from dgl.function.base import TargetCode
from dgl.function.message import BinaryMessageFunction, CopyMessageFunction
from dgl.function.reducer import SimpleReduceFunction
from torch import Tensor

from manyhop_dgl.samplers.blocks import make_column, values_of
from manyhop_dgl_cuda import fused
from manyhop_dgl_cuda.index import TorchGraphIndex

_SRC, _DST, _EDGE = TargetCode.SRC, TargetCode.DST, TargetCode.EDGE


class LocalScope:
    """``DGLGraph.local_scope``: a context in which changes of the graph's frames are those of a copy."""

    def __init__(self, g: dgl.DGLGraph) -> None:
        self._g = g

    def __enter__(self) -> None:
        g = self._g
        self._frames = g._node_frames, g._edge_frames
        g._node_frames, g._edge_frames = [*map(_copy, g._node_frames)], [*map(_copy, g._edge_frames)]

    def __exit__(self, *_: object) -> None:
        self._g._node_frames, self._g._edge_frames = self._frames


def update_all(
    g: dgl.DGLGraph, message_func: Any, reduce_func: Any, apply_node_func: object = None, etype: object = None
) -> bool:
    """Sum or average features of sources, or those weighted by edges, of a graph with one edge type."""
    gidx: TorchGraphIndex = g._graph
    if apply_node_func is not None or etype is not None or not _has_one_type(gidx):
        return False
    if type(reduce_func) is not SimpleReduceFunction or reduce_func.name not in ("sum", "mean"):
        return False
    src, dst = gidx.ends[0]
    rhs: Tensor | None = None
    if type(message_func) is CopyMessageFunction and message_func.target == _SRC:
        op, lhs = "copy_lhs", values_of(g._node_frames[src], message_func.in_field)
    elif _is_binary(message_func, "mul", _SRC, _EDGE):
        op, lhs = "mul", values_of(g._node_frames[src], message_func.lhs_field)
        rhs = values_of(g._edge_frames[0], message_func.rhs_field)
    else:
        return False
    if message_func.out_field != reduce_func.msg_field or not _are_here(gidx, lhs, rhs):
        return False
    if not fused.is_sum(gidx, op, "sum", lhs, rhs):
        return False
    assert lhs is not None
    out = fused.gspmm(gidx, op, reduce_func.name, lhs, rhs)
    g._node_frames[dst]._columns[reduce_func.out_field] = make_column(out)
    return True


def apply_edges(g: dgl.DGLGraph, func: Any, edges: object = ALL, etype: object = None) -> bool:
    """Add features of both ends of all edges, of a graph with one edge type."""
    gidx: TorchGraphIndex = g._graph
    if etype is not None or not is_all(edges) or not _has_one_type(gidx) or not _is_binary(func, "add", _SRC, _DST):
        return False
    src, dst = gidx.ends[0]
    lhs, rhs = values_of(g._node_frames[src], func.lhs_field), values_of(g._node_frames[dst], func.rhs_field)
    if not _are_here(gidx, lhs, rhs) or not fused.is_end_sum(gidx, "add", lhs, rhs):
        return False
    assert lhs is not None
    assert rhs is not None
    g._edge_frames[0]._columns[func.out_field] = make_column(fused.gsddmm(gidx, "add", lhs, rhs))
    return True


def set_nodes(g: dgl.DGLGraph, ntid: int, u: object, data: object) -> bool:
    """Set features of all nodes of a type."""
    return is_all(u) and _set_all(g._node_frames[ntid], g._graph, g._graph.num_nodes(ntid), data)


def set_edges(g: dgl.DGLGraph, etid: int, edges: object, data: object) -> bool:
    """Set features of all edges of a type."""
    return is_all(edges) and _set_all(g._edge_frames[etid], g._graph, g._graph.num_edges(etid), data)


def in_degrees(g: dgl.DGLGraph, v: object = ALL, etype: object = None) -> Tensor:
    """Return the number of edges into each node, without DGL's checks of ids, which wait for the GPU."""
    degrees: Tensor = g._graph.relations[g.get_etype_id(etype)].csc.degrees
    return degrees.clone()


def out_degrees(g: dgl.DGLGraph, u: object = ALL, etype: object = None) -> Tensor:
    """Return the number of edges out of each node, as :func:`in_degrees` does."""
    degrees: Tensor = g._graph.relations[g.get_etype_id(etype)].csr.degrees
    return degrees.clone()


def _set_all(frame: Frame, gidx: TorchGraphIndex, num_rows: int, data: object) -> bool:
    device = gidx.device
    if not isinstance(data, Mapping) or not all(
        isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == num_rows and value.device == device
        for value in data.values()
    ):
        return False
    for name, value in data.items():
        frame._columns[name] = make_column(value)
    return True


def _has_one_type(gidx: TorchGraphIndex) -> bool:
    """Return whether a graph has one edge type, and only the node types at its ends."""
    return len(gidx.ends) == 1 and len(gidx.num_nodes_by_type) == len({*gidx.ends[0]})


def _is_binary(func: Any, op: str, lhs: int, rhs: int) -> bool:
    return type(func) is BinaryMessageFunction and (func.binary_op, func.lhs, func.rhs) == (op, lhs, rhs)


def _are_here(gidx: TorchGraphIndex, lhs: Tensor | None, rhs: Tensor | None) -> bool:
    return all(value is None or value.device == gidx.device for value in (lhs, rhs))


def _copy(frame: Frame) -> Frame:
    copy = object.__new__(Frame)
    vars(copy).update(vars(frame))
    copy._columns = {
        name: column if isinstance(column, LazyFeature) else column.clone() for name, column in frame._columns.items()
    }
    return copy
