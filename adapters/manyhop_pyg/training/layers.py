"""Which of PyG's layers aggregate by segments, and the exchange of their classes."""

from __future__ import annotations

from typing import Final

import torch
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GINConv, GraphConv, MessagePassing, SAGEConv
from torch_geometric.nn.aggr import SumAggregation
from torch_geometric.nn.models.basic_gnn import TrimToLayer

from manyhop_pyg.training.attention import SegmentGATConv, SegmentGATv2Conv
from manyhop_pyg.training.convs import (
    REDUCTIONS,
    PassEdges,
    SegmentGCNConv,
    SegmentGINConv,
    SegmentGraphConv,
    SegmentSAGEConv,
    TrimByNeed,
)

_CLASSES: Final[dict[type, type]] = {
    SAGEConv: SegmentSAGEConv,
    GCNConv: SegmentGCNConv,
    GINConv: SegmentGINConv,
    GraphConv: SegmentGraphConv,
    GATConv: SegmentGATConv,
    GATv2Conv: SegmentGATv2Conv,
}


def obstacle(layer: MessagePassing) -> str | None:
    """Return why a layer cannot aggregate by segments; ``None``: it can."""
    if type(layer) in _CLASSES.values():
        return "it is accelerated already"
    if type(layer) not in _CLASSES:
        return f"{type(layer).__name__} is none of {', '.join(known.__name__ for known in _CLASSES)}"
    if type(layer.aggr_module) not in REDUCTIONS:
        return f"its aggregation {layer.aggr_module} is no sum, mean or maximum"
    if isinstance(layer, GATConv | GATv2Conv) and type(layer.aggr_module) is not SumAggregation:
        return f"its aggregation {layer.aggr_module} is no sum"
    if layer.flow != "source_to_target":
        return f"flow='{layer.flow}'"
    if layer.node_dim not in (-2, 0):
        return f"node_dim={layer.node_dim}"
    if layer.decomposed_layers != 1:
        return f"decomposed_layers={layer.decomposed_layers}"
    if isinstance(layer, GCNConv) and layer.improved:
        return "improved=True"
    return None


def replace(layer: MessagePassing, edges: PassEdges) -> None:
    """Let a layer without obstacles aggregate by segments."""
    layer.__class__ = _CLASSES[type(layer)]
    layer.segment_edges = edges


def replace_trims(model: torch.nn.Module, edges: PassEdges) -> None:
    """Let models of PyG that are given counts per hop leave it to their layers what they need.

    Not where a ``GCNConv`` normalizes: it counts the edges that PyG leaves.
    """
    modules = list(model.modules())
    if any(isinstance(module, GCNConv) and module.normalize for module in modules):
        return
    for module in modules:
        if type(module) is TrimToLayer:
            module.__class__ = TrimByNeed
            module.segment_edges = edges  # type: ignore[assignment]  # of its new class
