"""Replacement of PyG's loaders, samplers and models by manyhop's in unchanged code."""

from __future__ import annotations

import torch_geometric.loader
import torch_geometric.nn
import torch_geometric.sampler
import torch_geometric.utils

from manyhop.loading import Swap
from manyhop_pyg.loaders.link import LinkLoader, LinkNeighborLoader
from manyhop_pyg.loaders.node import HGTLoader, NeighborLoader, NodeLoader
from manyhop_pyg.loaders.node_sets import ClusterData, ClusterLoader
from manyhop_pyg.loaders.subgraphs import (
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    ShaDowKHopSampler,
)
from manyhop_pyg.samplers.bidirectional import BidirectionalNeighborSampler
from manyhop_pyg.samplers.hgt import HGTSampler
from manyhop_pyg.samplers.neighbor import NeighborSampler
from manyhop_pyg.samplers.subgraphs import get_ppr
from manyhop_pyg.training.walk_models import MetaPath2Vec, Node2Vec

_PAIRS: list[tuple[object, object]] = [
    (torch_geometric.loader.NodeLoader, NodeLoader),
    (torch_geometric.loader.NeighborLoader, NeighborLoader),
    (torch_geometric.loader.LinkLoader, LinkLoader),
    (torch_geometric.loader.LinkNeighborLoader, LinkNeighborLoader),
    (torch_geometric.loader.HGTLoader, HGTLoader),
    (torch_geometric.loader.ShaDowKHopSampler, ShaDowKHopSampler),
    (torch_geometric.loader.GraphSAINTNodeSampler, GraphSAINTNodeSampler),
    (torch_geometric.loader.GraphSAINTEdgeSampler, GraphSAINTEdgeSampler),
    (torch_geometric.loader.GraphSAINTRandomWalkSampler, GraphSAINTRandomWalkSampler),
    (torch_geometric.loader.ClusterData, ClusterData),
    (torch_geometric.loader.ClusterLoader, ClusterLoader),
    (torch_geometric.sampler.NeighborSampler, NeighborSampler),
    (torch_geometric.sampler.HGTSampler, HGTSampler),
    (torch_geometric.nn.Node2Vec, Node2Vec),
    (torch_geometric.nn.MetaPath2Vec, MetaPath2Vec),
    (torch_geometric.utils.get_ppr, get_ppr),
]
if hasattr(torch_geometric.sampler, "BidirectionalNeighborSampler"):  # not in PyG 2.6
    _PAIRS.append((torch_geometric.sampler.BidirectionalNeighborSampler, BidirectionalNeighborSampler))

# It only checks isinstance of PyG's loaders, which includes manyhop's and classes derived from PyG's earlier.
_ONLY_ASKS = "torch_geometric.nn.models.basic_gnn"

_swap = Swap("manyhop_pyg", "torch_geometric", _PAIRS, skip=[_ONLY_ASKS])


def install() -> None:
    """Replace PyG's loaders by manyhop's, in this process and in those that ``multiprocessing`` starts from it.

    It replaces NodeLoader, NeighborLoader, LinkLoader, LinkNeighborLoader, HGTLoader, ShaDowKHopSampler, the three
    loaders of GraphSAINT, ClusterData and ClusterLoader in ``torch_geometric.loader``, NeighborSampler,
    BidirectionalNeighborSampler and HGTSampler in ``torch_geometric.sampler``, Node2Vec and MetaPath2Vec in
    ``torch_geometric.nn``, get_ppr in ``torch_geometric.utils``, and these names in modules that have imported them.
    Attributes of classes, default arguments and the base classes of existing classes (with their names) are unchanged.
    Call it again after further imports.
    """
    _swap.install()


def uninstall() -> None:
    """Restore PyG's classes in PyG and where ``install`` replaced them. Without ``install``, do nothing.

    Modules that imported manyhop's classes by these names keep them.
    """
    _swap.uninstall()
