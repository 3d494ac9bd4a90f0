"""Layers of DGL that keep the host busy for longer than the GPU, for graphs on torch tensors: by fewer functions."""

from __future__ import annotations

from typing import Any

import torch
from dgl import DGLGraph
from dgl.nn.pytorch.conv.gatconv import GATConv
from dgl.nn.pytorch.conv.sageconv import SAGEConv
from torch import Tensor, nn

from manyhop_dgl_cuda.differentiable import attention
from manyhop_dgl_cuda.fused import gspmm
from manyhop_dgl_cuda.index import TorchGraphIndex
from manyhop_dgl_cuda.message_passing import check_dtypes


def is_sage(layer: SAGEConv, graph: DGLGraph, feat: object, edge_weight: object = None) -> bool:
    """Return whether :func:`sage` computes this: means without weights."""
    return type(layer) is SAGEConv and layer._aggre_type == "mean" and edge_weight is None and _has_rows(graph, feat)


def sage(layer: SAGEConv, graph: DGLGraph, feat: Tensor, edge_weight: None = None) -> Tensor:
    """Average the sources of each destination: ``SAGEConv.forward`` where :func:`is_sage`.

    Args:
        layer: whose modules are called.
        graph: a block, or a graph with one node type and one edge type.
        feat: ``[num_src, in_feats]``.
        edge_weight: none.

    Returns:
        ``[num_dst, out_feats]``.
    """
    gidx: TorchGraphIndex = graph._graph
    rows, fc_neigh = _dropped(layer.feat_drop, feat), layer.fc_neigh
    if layer._in_src_feats > layer._out_feats:  # the mean of fewer features
        means = gspmm(gidx, "copy_lhs", "mean", fc_neigh(rows), None)
    else:
        means = fc_neigh(gspmm(gidx, "copy_lhs", "mean", rows, None))
    out: Tensor = layer.fc_self(rows[: gidx.relations[0].num_dst]) + means
    out = out if layer.activation is None else layer.activation(out)
    return out if layer.norm is None else layer.norm(out)


def is_gat(layer: GATConv, graph: DGLGraph, feat: Any, edge_weight: object = None, get_attention: bool = False) -> bool:
    """Return whether :func:`gat` computes this: the attention is neither dropped out, weighted nor returned."""
    return (
        type(layer) is GATConv
        and edge_weight is None
        and not get_attention
        and _has_rows(graph, feat)
        and not torch.is_autocast_enabled(feat.device.type)
        and feat.dtype == layer.attn_l.dtype
        and _is_plain(layer.leaky_relu, nn.LeakyReLU)
        and _does_nothing(layer.attn_drop)
        and (layer._allow_zero_in_degree or not bool((graph._graph.relations[0].csc.degrees == 0).any()))
    )


def gat(layer: GATConv, graph: DGLGraph, feat: Tensor, edge_weight: None = None, get_attention: bool = False) -> Tensor:
    """Compute ``GATConv.forward`` if :func:`is_gat`: attend to the sources of each destination.

    Args:
        layer: whose modules and parameters are used.
        graph: a block, or a graph with one node type and one edge type.
        feat: ``[num_src, in_feats]``.
        edge_weight: none.
        get_attention: no.

    Returns:
        ``[num_dst, num_heads, out_feats]``.
    """
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


def _dropped(dropout: nn.Module, rows: Tensor) -> Tensor:
    return rows if _does_nothing(dropout) else dropout(rows)


def _does_nothing(dropout: nn.Module) -> bool:
    return (
        isinstance(dropout, nn.Dropout) and _is_plain(dropout, nn.Dropout) and (dropout.p == 0 or not dropout.training)
    )


def _is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a module has neither hooks nor a subclass that would miss the call."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return type(module) is kind and not hooks
