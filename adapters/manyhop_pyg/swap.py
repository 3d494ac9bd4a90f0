"""Replacement of PyG's loaders, samplers and models by manyhop's in unchanged code."""

from __future__ import annotations

from collections.abc import Sequence

import torch_geometric.loader
import torch_geometric.nn
import torch_geometric.sampler
import torch_geometric.utils

from manyhop.loading import Swap
from manyhop_pyg.loaders import link, node, node_sets, subgraphs
from manyhop_pyg.samplers import bidirectional, hgt, neighbor
from manyhop_pyg.samplers.subgraphs import get_ppr
from manyhop_pyg.training.walk_models import MetaPath2Vec, Node2Vec

_REPLACED: list[tuple[object, object, Sequence[str]]] = [
    (torch_geometric.loader, node, ("NodeLoader", "NeighborLoader", "HGTLoader")),
    (torch_geometric.loader, link, ("LinkLoader", "LinkNeighborLoader")),
    (torch_geometric.loader, subgraphs, ("ShaDowKHopSampler", "GraphSAINTNodeSampler", "GraphSAINTEdgeSampler")),
    (torch_geometric.loader, subgraphs, ("GraphSAINTRandomWalkSampler",)),
    (torch_geometric.loader, node_sets, ("ClusterData", "ClusterLoader")),
    (torch_geometric.sampler, neighbor, ("NeighborSampler",)),
    (torch_geometric.sampler, hgt, ("HGTSampler",)),
    (torch_geometric.sampler, bidirectional, ("BidirectionalNeighborSampler",)),  # not in PyG 2.6
]
_PAIRS: list[tuple[object, object]] = [
    *((getattr(theirs, n), getattr(ours, n)) for theirs, ours, names in _REPLACED for n in names if hasattr(theirs, n)),
    (torch_geometric.nn.Node2Vec, Node2Vec),
    (torch_geometric.nn.MetaPath2Vec, MetaPath2Vec),
    (torch_geometric.utils.get_ppr, get_ppr),
]

# The skipped module only checks isinstance of PyG's loaders: manyhop's are included, and derived classes.
_swap = Swap("manyhop_pyg", "torch_geometric", _PAIRS, skip=["torch_geometric.nn.models.basic_gnn"])


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
