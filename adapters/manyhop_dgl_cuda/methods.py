"""Methods of ``DGLGraph`` and layers of ``dgl.nn`` that DGL calls in each step, for graphs on torch tensors.

DGL's methods use views, frames and checks, which keep the host busy for longer than the GPU. These methods have
the same effect on the frames. They return ``NotImplemented``, without an effect, if DGL's own must run or raise.
"""

from __future__ import annotations

from typing import Any

import torch
from dgl import DGLGraph
from dgl.base import ALL, is_all
from dgl.frame import Frame, LazyFeature
from dgl.function.base import TargetCode
from dgl.function.message import BinaryMessageFunction, CopyMessageFunction
from dgl.function.reducer import SimpleReduceFunction
from dgl.nn.pytorch.conv.gatconv import GATConv
from dgl.nn.pytorch.conv.sageconv import SAGEConv
from torch import Tensor, nn

from manyhop_dgl.samplers.blocks import make_column
from manyhop_dgl.samplers.features import values_of
from manyhop_dgl_cuda import fused
from manyhop_dgl_cuda.differentiable import attention
from manyhop_dgl_cuda.index import TorchGraphIndex
from manyhop_dgl_cuda.message_passing import check_dtypes

_SRC, _DST, _EDGE = TargetCode.SRC, TargetCode.DST, TargetCode.EDGE


class LocalScope:
    """``DGLGraph.local_scope``: a context that changes a copy of the graph's frames."""

    def __init__(self, g: DGLGraph) -> None:
        self._g = g

    def __enter__(self) -> None:
        g = self._g
        self._frames = g._node_frames, g._edge_frames
        g._node_frames, g._edge_frames = [*map(_copy, g._node_frames)], [*map(_copy, g._edge_frames)]

    def __exit__(self, *_: object) -> None:
        self._g._node_frames, self._g._edge_frames = self._frames


def update_all(
    g: DGLGraph, message_func: Any, reduce_func: Any, apply_node_func: object = None, etype: object = None
) -> object:
    """Sum or average features of sources, or those weighted by edges, of a graph with one edge type."""
    gidx: TorchGraphIndex = g._graph
    if apply_node_func is not None or etype is not None or not _has_one_type(gidx):
        return NotImplemented
    if type(reduce_func) is not SimpleReduceFunction:
        return NotImplemented
    src, dst = gidx.ends[0]
    rhs: Tensor | None = None
    if type(message_func) is CopyMessageFunction and message_func.target == _SRC:
        op, lhs = "copy_lhs", values_of(g._node_frames[src], message_func.in_field)
    elif _is_binary(message_func, "mul", _SRC, _EDGE):
        op, lhs = "mul", values_of(g._node_frames[src], message_func.lhs_field)
        rhs = values_of(g._edge_frames[0], message_func.rhs_field)
    else:
        return NotImplemented
    if message_func.out_field != reduce_func.msg_field or not _are_here(gidx, lhs, rhs):
        return NotImplemented
    out = fused.gspmm(gidx, op, reduce_func.name, lhs, rhs)
    if out is NotImplemented:
        return NotImplemented
    g._node_frames[dst]._columns[reduce_func.out_field] = make_column(out)
    return None


def apply_edges(g: DGLGraph, func: Any, edges: object = ALL, etype: object = None) -> object:
    """Add features of both ends of all edges, of a graph with one edge type."""
    gidx: TorchGraphIndex = g._graph
    if etype is not None or not is_all(edges) or not _has_one_type(gidx) or not _is_binary(func, "add", _SRC, _DST):
        return NotImplemented
    src, dst = gidx.ends[0]
    lhs, rhs = values_of(g._node_frames[src], func.lhs_field), values_of(g._node_frames[dst], func.rhs_field)
    if not _are_here(gidx, lhs, rhs) or (out := fused.gsddmm(gidx, "add", lhs, rhs)) is NotImplemented:
        return NotImplemented
    g._edge_frames[0]._columns[func.out_field] = make_column(out)
    return None


def in_degrees(g: DGLGraph, v: object = ALL, etype: object = None) -> object:
    """Return the number of edges into each node, without DGL's checks of ids, which wait for the GPU."""
    return g._graph.relations[g.get_etype_id(etype)].csc.degrees.clone() if is_all(v) else NotImplemented


def out_degrees(g: DGLGraph, u: object = ALL, etype: object = None) -> object:
    """Return the number of edges out of each node, as :func:`in_degrees` does."""
    return g._graph.relations[g.get_etype_id(etype)].csr.degrees.clone() if is_all(u) else NotImplemented


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


def sage(layer: SAGEConv, graph: DGLGraph, feat: Any, edge_weight: object = None) -> object:
    """Average the sources of each destination without weights, ``[num_dst, out_feats]``: ``SAGEConv.forward``."""
    if type(layer) is not SAGEConv or layer._aggre_type != "mean" or edge_weight is not None:
        return NotImplemented
    if not _has_rows(graph, feat):
        return NotImplemented
    gidx: TorchGraphIndex = graph._graph
    rows, fc_neigh = _dropped(layer.feat_drop, feat), layer.fc_neigh
    if layer._in_src_feats > layer._out_feats:  # the mean of fewer features
        means = fused.gspmm(gidx, "copy_lhs", "mean", fc_neigh(rows), None)
    else:
        means = fc_neigh(fused.gspmm(gidx, "copy_lhs", "mean", rows, None))
    out: Tensor = layer.fc_self(rows[: gidx.relations[0].num_dst]) + means
    out = out if layer.activation is None else layer.activation(out)
    return out if layer.norm is None else layer.norm(out)


def gat(layer: GATConv, graph: DGLGraph, feat: Any, edge_weight: object = None, get_attention: bool = False) -> object:
    """Attend to the sources, ``[num_dst, num_heads, out_feats]``: ``GATConv.forward``.

    Attention is neither dropped out, weighted nor returned.
    """
    if type(layer) is not GATConv or edge_weight is not None or get_attention or not _has_rows(graph, feat):
        return NotImplemented
    if torch.is_autocast_enabled(feat.device.type) or feat.dtype != layer.attn_l.dtype:
        return NotImplemented
    if not _is_plain(layer.leaky_relu, nn.LeakyReLU) or not _does_nothing(layer.attn_drop):
        return NotImplemented
    if not layer._allow_zero_in_degree and bool((graph._graph.relations[0].csc.degrees == 0).any()):
        return NotImplemented
    adjacency = graph._graph.relations[0]
    sources = _dropped(layer.feat_drop, feat)
    heads, features = layer.attn_l.shape[1:]
    rows = layer.fc(sources).view(-1, heads, features)
    left = (rows * layer.attn_l).sum(-1)
    check_dtypes(rows, left)
    right = (rows[: adjacency.num_dst] * layer.attn_r).sum(-1)
    out: Tensor = attention(adjacency, rows, left, right, layer.leaky_relu.negative_slope)
    if layer.res_fc is not None:
        out = out + layer.res_fc(sources[: adjacency.num_dst]).view(adjacency.num_dst, -1, features)
    if layer.has_explicit_bias:
        out = out + layer.bias.view(1, heads, features)
    return layer.activation(out) if layer.activation else out


def _has_rows(graph: DGLGraph, feat: object) -> bool:
    """Return whether a graph has one edge type, and features a row per source, destinations first."""
    gidx = graph._graph
    if type(gidx) is not TorchGraphIndex or len(gidx.ends) != 1 or not isinstance(feat, Tensor):
        return False
    relation = gidx.relations[0]
    return (
        feat.dim() == 2
        and feat.is_floating_point()
        and feat.device == relation.device
        and feat.shape[0] == relation.num_src >= relation.num_dst
        and (graph.is_block or gidx.ends[0][0] == gidx.ends[0][1])
    )


def _dropped(dropout: nn.Module, rows: Tensor) -> Any:
    return rows if _does_nothing(dropout) else dropout(rows)


def _does_nothing(dropout: nn.Module) -> bool:
    return (
        isinstance(dropout, nn.Dropout) and _is_plain(dropout, nn.Dropout) and (dropout.p == 0 or not dropout.training)
    )


def _is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a module has neither hooks nor a subclass that would miss the call."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return type(module) is kind and not hooks
