"""Replace DGL's DataLoader and samplers by manyhop's, for unchanged code."""

from __future__ import annotations

import dgl.dataloading
import dgl.graphbolt
import dgl.sampling
from dgl.dataloading import negative_sampler

from manyhop.loading import Swap
from manyhop_dgl.compat import unavailable
from manyhop_dgl.loader.loader import DataLoader
from manyhop_dgl.samplers.edges import EdgePredictionSampler, as_edge_prediction_sampler
from manyhop_dgl.samplers.labor import LaborSampler
from manyhop_dgl.samplers.negatives import GlobalUniform, PerSourceUniform
from manyhop_dgl.samplers.neighbor import MultiLayerFullNeighborSampler, NeighborSampler
from manyhop_dgl.samplers.pinsage import PinSAGESampler, RandomWalkNeighborSampler
from manyhop_dgl.samplers.walks import node2vec_random_walk, random_walk

_PAIRS: list[tuple[object, object]] = [
    (dgl.dataloading.DataLoader, DataLoader),
    (dgl.dataloading.NeighborSampler, NeighborSampler),
    (dgl.dataloading.MultiLayerFullNeighborSampler, MultiLayerFullNeighborSampler),
    (dgl.dataloading.LaborSampler, LaborSampler),
    (dgl.dataloading.EdgePredictionSampler, EdgePredictionSampler),
    (dgl.dataloading.as_edge_prediction_sampler, as_edge_prediction_sampler),
    (negative_sampler.PerSourceUniform, PerSourceUniform),
    (negative_sampler.GlobalUniform, GlobalUniform),
    (dgl.sampling.random_walk, random_walk),
    (dgl.sampling.node2vec_random_walk, node2vec_random_walk),
    (dgl.sampling.RandomWalkNeighborSampler, RandomWalkNeighborSampler),
    (dgl.sampling.PinSAGESampler, PinSAGESampler),
]

_swap = Swap("manyhop_dgl", "dgl", _PAIRS)


_names_before: dict[str, object] | None = None
"""Names of ``dgl.graphbolt`` before ``install``; ``None`` if they are there."""


def install() -> None:
    """Replace DGL's classes by manyhop classes, in this process and in its ``multiprocessing`` children.

    Replaced are DataLoader, NeighborSampler (also as MultiLayerNeighborSampler), MultiLayerFullNeighborSampler,
    LaborSampler, EdgePredictionSampler and as_edge_prediction_sampler in ``dgl.dataloading``, PerSourceUniform (also as
    Uniform) and GlobalUniform in ``dgl.dataloading.negative_sampler``, random_walk, node2vec_random_walk,
    RandomWalkNeighborSampler and PinSAGESampler in ``dgl.sampling``, and what modules have already imported of them.
    Names that are not in a module's namespace (attributes of classes, default arguments) are unchanged, and so do
    the base classes of existing classes and the names of these bases in their modules. Can be called again, for what
    has been imported since.

    A ``dgl.distributed.DistGraph`` is sampled by DGL's own samplers, which those of manyhop hand over to.

    ``dgl.graphbolt``, where its library does not fit torch, becomes ``manyhop_dgl.graphbolt``.
    """
    global _names_before
    _swap.install()
    if "dgl.graphbolt" in unavailable() and _names_before is None:
        from manyhop_dgl import graphbolt

        names = vars(dgl.graphbolt)
        _names_before = dict(names)
        names.update({name: getattr(graphbolt, name) for name in graphbolt.__all__})


def uninstall() -> None:
    """Restore DGL's classes where ``install`` found them, and in all of DGL.

    Modules that imported manyhop's classes under these names keep them.
    """
    global _names_before
    _swap.uninstall()
    if _names_before is not None:
        names, before, _names_before = vars(dgl.graphbolt), _names_before, None
        names.clear()
        names.update(before)
