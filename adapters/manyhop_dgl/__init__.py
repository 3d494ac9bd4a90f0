"""manyhop for DGL: its samplers, DataLoader and GraphBolt, fast and reproducible, by changing one import.

Importing this package makes ``import dgl`` work on a current torch (``manyhop_dgl.compat``). What needs DGL itself is
imported when it is asked for: the rest works where DGL is not installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from manyhop.errors import MissingExtraError
from manyhop_dgl import compat

if TYPE_CHECKING:
    from manyhop_dgl._blocks import to_blocks
    from manyhop_dgl._edge_prediction import EdgePredictionSampler, as_edge_prediction_sampler
    from manyhop_dgl._edge_prediction_negatives import GlobalUniform, PerSourceUniform, Uniform
    from manyhop_dgl._edge_prediction_tensors import EdgeTensors
    from manyhop_dgl._graph import Graph
    from manyhop_dgl._install import install, uninstall
    from manyhop_dgl._labor import LaborSampler
    from manyhop_dgl._loader import DataLoader
    from manyhop_dgl._samplers import MultiLayerFullNeighborSampler, MultiLayerNeighborSampler, NeighborSampler
    from manyhop_dgl._samplers_features import sample_tensors
    from manyhop_dgl._samplers_tensors import BlockEdges, BlockTensors
    from manyhop_dgl._share import share

# Public name -> the module that has it.
_MODULES = {
    "BlockEdges": "_samplers_tensors",
    "BlockTensors": "_samplers_tensors",
    "DataLoader": "_loader",
    "EdgePredictionSampler": "_edge_prediction",
    "EdgeTensors": "_edge_prediction_tensors",
    "GlobalUniform": "_edge_prediction_negatives",
    "Graph": "_graph",
    "LaborSampler": "_labor",
    "MultiLayerFullNeighborSampler": "_samplers",
    "MultiLayerNeighborSampler": "_samplers",
    "NeighborSampler": "_samplers",
    "PerSourceUniform": "_edge_prediction_negatives",
    "Uniform": "_edge_prediction_negatives",
    "as_edge_prediction_sampler": "_edge_prediction",
    "install": "_install",
    "sample_tensors": "_samplers_features",
    "share": "_share",
    "to_blocks": "_blocks",
    "uninstall": "_install",
}

__all__ = [
    "BlockEdges",
    "BlockTensors",
    "DataLoader",
    "EdgePredictionSampler",
    "EdgeTensors",
    "GlobalUniform",
    "Graph",
    "LaborSampler",
    "MultiLayerFullNeighborSampler",
    "MultiLayerNeighborSampler",
    "NeighborSampler",
    "PerSourceUniform",
    "Uniform",
    "as_edge_prediction_sampler",
    "compat",
    "install",
    "sample_tensors",
    "share",
    "to_blocks",
    "uninstall",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'manyhop_dgl' has no attribute {name!r}")
    try:
        value = getattr(import_module(f"manyhop_dgl.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "dgl":
            raise
        raise MissingExtraError("dgl", "dgl", f"manyhop_dgl.{name}") from None
    globals()[name] = value
    return value
