"""manyhop for PyTorch Geometric: PyG's loaders, fast and reproducible, by changing one import."""

from manyhop_pyg._bidirectional_sampler import BidirectionalNeighborSampler
from manyhop_pyg._feature_store import FeatureStore
from manyhop_pyg._folder import open, save
from manyhop_pyg._graph_store import GraphStore
from manyhop_pyg._hgt import HGTLoader
from manyhop_pyg._hgt_sampler import HGTSampler
from manyhop_pyg._install import install, uninstall
from manyhop_pyg._link_loader import LinkLoader, LinkNeighborLoader
from manyhop_pyg._node_loader import NeighborLoader, NodeLoader
from manyhop_pyg._sampler import NeighborSampler
from manyhop_pyg._share import share

__all__ = [
    "BidirectionalNeighborSampler",
    "FeatureStore",
    "GraphStore",
    "HGTLoader",
    "HGTSampler",
    "LinkLoader",
    "LinkNeighborLoader",
    "NeighborLoader",
    "NeighborSampler",
    "NodeLoader",
    "install",
    "open",
    "save",
    "share",
    "uninstall",
]
