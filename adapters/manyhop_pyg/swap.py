"""Put manyhop's loaders and samplers where PyG's are, for code that is not to be changed."""

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

# It only asks whether a loader is PyG's, which ours are, too, and so are those of classes derived from PyG's before.
_ONLY_ASKS = "torch_geometric.nn.models.basic_gnn"

_swap = Swap("manyhop_pyg", "torch_geometric", _PAIRS, skip=[_ONLY_ASKS])


def install() -> None:
    """Replace PyG's loaders by manyhop's, in this process and in those that ``multiprocessing`` starts from it.

    Replaced are NodeLoader, NeighborLoader, LinkLoader, LinkNeighborLoader, HGTLoader,
    ShaDowKHopSampler, the three of GraphSAINT, ClusterData and ClusterLoader in ``torch_geometric.loader``,
    NeighborSampler, BidirectionalNeighborSampler and HGTSampler in ``torch_geometric.sampler``, Node2Vec and
    MetaPath2Vec in ``torch_geometric.nn``, get_ppr in ``torch_geometric.utils``, and what modules have already imported
    of them. Names that are not in a module's namespace (attributes of classes, default arguments) stay as they are, and
    so do the base classes of existing classes and the names of these bases in their modules. Can be called again, for
    what has been imported since.
    """
    _swap.install()


def uninstall() -> None:
    """Put PyG's classes back where ``install`` found them, and in all of PyG. Without ``install``: nothing happens.

    Modules that took the names while they meant manyhop's keep these.
    """
    _swap.uninstall()
