"""manyhop for PyTorch Geometric: PyG's loaders, fast and reproducible, by changing one import."""

from manyhop_pyg.data.feature_store import FeatureStore
from manyhop_pyg.data.folder import open, save
from manyhop_pyg.data.graph_store import GraphStore
from manyhop_pyg.data.sharing import share
from manyhop_pyg.loaders.link import LinkLoader, LinkNeighborLoader
from manyhop_pyg.loaders.node import HGTLoader, NeighborLoader, NodeLoader
from manyhop_pyg.loaders.node_sets import ClusterData, ClusterLoader, RandomNodeLoader
from manyhop_pyg.loaders.subgraphs import (
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    PPRLoader,
    ShaDowKHopSampler,
)
from manyhop_pyg.samplers.bidirectional import BidirectionalNeighborSampler
from manyhop_pyg.samplers.hgt import HGTSampler
from manyhop_pyg.samplers.neighbor import NeighborSampler
from manyhop_pyg.samplers.spec import GivenNegatives
from manyhop_pyg.samplers.subgraphs import get_ppr
from manyhop_pyg.swap import install, uninstall
from manyhop_pyg.training.capture import capture
from manyhop_pyg.training.layers import accelerate
from manyhop_pyg.training.walk_models import MetaPath2Vec, Node2Vec

__all__ = [
    "BidirectionalNeighborSampler",
    "ClusterData",
    "ClusterLoader",
    "FeatureStore",
    "GivenNegatives",
    "GraphSAINTEdgeSampler",
    "GraphSAINTNodeSampler",
    "GraphSAINTRandomWalkSampler",
    "GraphStore",
    "HGTLoader",
    "HGTSampler",
    "LinkLoader",
    "LinkNeighborLoader",
    "MetaPath2Vec",
    "NeighborLoader",
    "NeighborSampler",
    "Node2Vec",
    "NodeLoader",
    "PPRLoader",
    "RandomNodeLoader",
    "ShaDowKHopSampler",
    "accelerate",
    "capture",
    "get_ppr",
    "install",
    "open",
    "save",
    "share",
    "uninstall",
]
