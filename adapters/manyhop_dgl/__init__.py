"""manyhop for DGL: its samplers, DataLoader and GraphBolt, fast and reproducible, by changing one import.

Importing this package makes ``import dgl`` work on a current torch (``manyhop_dgl.compat``). What needs DGL itself is
imported when it is requested: the rest works where DGL is not installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from manyhop.errors import MissingExtraError
from manyhop_dgl import compat

if TYPE_CHECKING:
    from manyhop_dgl.graph.graph import Graph
    from manyhop_dgl.graph.sharing import share
    from manyhop_dgl.loader.loader import DataLoader
    from manyhop_dgl.samplers.blocks import to_blocks
    from manyhop_dgl.samplers.edges import EdgePredictionSampler, as_edge_prediction_sampler
    from manyhop_dgl.samplers.labor import LaborSampler
    from manyhop_dgl.samplers.negatives import GlobalUniform, PerSourceUniform, Uniform
    from manyhop_dgl.samplers.neighbor import MultiLayerFullNeighborSampler, MultiLayerNeighborSampler, NeighborSampler
    from manyhop_dgl.samplers.pinsage import PinSAGESampler, RandomWalkNeighborSampler
    from manyhop_dgl.samplers.plan import sample_tensors
    from manyhop_dgl.samplers.tensors import BlockEdges, BlockTensors, EdgeTensors
    from manyhop_dgl.samplers.walks import node2vec_random_walk, random_walk
    from manyhop_dgl.swap import install, uninstall
    from manyhop_dgl.training import capture

# Public name -> the module that has it.
_MODULES = {
    "BlockEdges": "samplers.tensors",
    "BlockTensors": "samplers.tensors",
    "DataLoader": "loader.loader",
    "EdgePredictionSampler": "samplers.edges",
    "EdgeTensors": "samplers.tensors",
    "GlobalUniform": "samplers.negatives",
    "Graph": "graph.graph",
    "LaborSampler": "samplers.labor",
    "MultiLayerFullNeighborSampler": "samplers.neighbor",
    "MultiLayerNeighborSampler": "samplers.neighbor",
    "NeighborSampler": "samplers.neighbor",
    "PerSourceUniform": "samplers.negatives",
    "PinSAGESampler": "samplers.pinsage",
    "RandomWalkNeighborSampler": "samplers.pinsage",
    "Uniform": "samplers.negatives",
    "as_edge_prediction_sampler": "samplers.edges",
    "capture": "training",
    "install": "swap",
    "node2vec_random_walk": "samplers.walks",
    "random_walk": "samplers.walks",
    "sample_tensors": "samplers.plan",
    "share": "graph.sharing",
    "to_blocks": "samplers.blocks",
    "uninstall": "swap",
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
    "PinSAGESampler",
    "RandomWalkNeighborSampler",
    "Uniform",
    "as_edge_prediction_sampler",
    "capture",
    "compat",
    "install",
    "node2vec_random_walk",
    "random_walk",
    "sample_tensors",
    "share",
    "to_blocks",
    "uninstall",
]


def __getattr__(name: str) -> object:
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


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
