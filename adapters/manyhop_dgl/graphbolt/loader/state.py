"""Where a loader stands in an epoch of an item sampler, to go on in mid-epoch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterDataPipe

from manyhop.errors import InputError
from manyhop.loading import Progress, Resumable, plain
from manyhop.pipeline import BatchPlan, Deal, LoaderState, Turn
from manyhop_dgl.graphbolt.graph.graph import FusedCSCSamplingGraph
from manyhop_dgl.graphbolt.items.sampler import ItemSampler
from manyhop_dgl.graphbolt.items.sets import HeteroItemSet, ItemSet
from manyhop_dgl.graphbolt.loader.chain import Part
from manyhop_dgl.graphbolt.stages.features import FeatureFetcher
from manyhop_dgl.graphbolt.stages.layers import AllLayers
from manyhop_dgl.graphbolt.stages.stage import CopyTo, is_ours

_OF_GRAPH = ("csc_indptr", "indices", "node_type_offset", "type_per_edge", "node_attributes", "edge_attributes")


class Position(Resumable):
    """The part of a loader that saves where it stands: of a chain that begins with an item sampler.

    Args:
        source: the item sampler.
        part: the whole chain.
    """

    _own_order = True

    def __init__(self, source: ItemSampler, part: Part) -> None:
        self._source, self._part = source, part
        self._ranks = None
        self._progress = Progress()
        self._loaded: Progress | None = None
        plan = source.plan
        self.batch_size, self.drop_last = plan.batch_size, plan.drop_last
        self._num_items, self._shuffle = plan.num_items, plan.shuffle

    @property
    def seed(self) -> int | None:
        """That of the item sampler."""
        return self._source.seed

    @seed.setter
    def seed(self, value: int | None) -> None:
        self._source.set_seed(value)

    @property
    def progress(self) -> Progress:
        """Of the latest iteration, which keeps it up to date."""
        return self._progress

    def begin_epoch(self) -> tuple[int, list[Turn]]:
        """Begin the next epoch, or the rest of one; return its number and its batches."""
        source, progress = self._source, self._progress
        if progress.begun:
            progress = self._progress = Progress()
        elif progress is self._loaded:
            source.resume_at(progress.epoch, progress.seed)
        progress.begun = True
        progress.epoch = source.begin_epoch()
        progress.seed = source.drawn_seed(progress.epoch)
        progress.deal = Deal(num_batches=source.num_batches, first=progress.first)
        progress.rounds = len(progress.deal)
        return progress.epoch, source.turns()[progress.first :]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict()`` was called."""
        super().load_state_dict(state)
        self._loaded = self._progress

    def _state(self) -> LoaderState:
        if not self._progress.begun and self._progress is not self._loaded:
            self._progress.epoch = self._source.next_epoch
        return super()._state()

    def _plan(self, seed: int = 0) -> BatchPlan:
        return self._source.plan

    def _shape(self) -> dict[str, Any]:
        source = self._source
        facts: dict[str, Any] = {"buffer_size": source.buffer_size, "minibatcher": _described(source.minibatcher)}
        graphs: list[Any] = []
        for i, stage in enumerate(self._part.stages.ours):
            if is_ours(stage) and not isinstance(stage, FeatureFetcher | CopyTo):
                facts[f"stage {i}"] = [type(stage).__name__, _arguments(stage, graphs)]
        for i, graph in enumerate(graphs):
            of_graph = f"graph {i}" if i else "graph"
            facts |= {f"{name} of the {of_graph}": getattr(graph, name, None) for name in _OF_GRAPH}
        return facts | {"items": _items(source.item_set)}


def position_of(parts: list[Part]) -> Position | None:
    """What saves where a loader of a chain stands; ``None``: the chain cannot be resumed."""
    source = parts[0].source
    if len(parts) > 1 or not isinstance(source, ItemSampler) or not source.is_indexable:
        return None
    own = (type(source).__iter__, type(source).turns)
    return Position(source, parts[0]) if own == (ItemSampler.__iter__, ItemSampler.turns) else None


def cannot_resume(parts: list[Part]) -> InputError:
    """The error of a chain that cannot be resumed."""
    chain = " and ".join(type(part.source).__name__ for part in parts)
    return InputError(
        "Expected a chain of an ItemSampler, whose items can be indexed, and of stages that keep the number and order "
        f"of minibatches, to save and load where it stands; got one with {chain}. Save at the end of an epoch instead."
    )


def _arguments(stage: Any, graphs: list[Any]) -> dict[str, Any]:
    """What a stage draws by; graphs are added to a list, and stand there by their numbers."""
    found = {
        name: value
        for name, value in vars(stage).items()
        if name not in ("datapipe", "transformer") and not hasattr(IterDataPipe, name)
    }
    function = stage.transformer
    if isinstance(function, AllLayers):
        found |= {name: value for name, value in vars(function).items() if name != "_known"}
    elif isinstance(function, partial):
        found |= dict(enumerate(function.args)) | function.keywords | {"function": function.func}
    return {str(name): _described(value, graphs) for name, value in found.items()}


def _described(value: Any, graphs: list[Any] | None = None) -> Any:
    """A value without graphs and functions, which have names instead."""
    if isinstance(value, FusedCSCSamplingGraph) and graphs is not None:
        if not any(graph is value for graph in graphs):
            graphs.append(value)
        return f"graph {next(i for i, graph in enumerate(graphs) if graph is value)}"
    if isinstance(value, list | tuple):
        return [_described(part, graphs) for part in value]
    if callable(value):
        return getattr(value, "__qualname__", f"a {type(value).__name__}")
    return value


def _items(item_set: Any) -> Any:
    """The items of a set: tensors, and plain values."""
    if isinstance(item_set, HeteroItemSet):
        return {name: _items(one) for name, one in item_set.by_type.items()}
    if isinstance(item_set, ItemSet):
        return [item_set.names, _items(item_set.items)]
    if isinstance(item_set, tuple):
        return [_items(part) for part in item_set]
    if isinstance(item_set, np.ndarray) and item_set.dtype.kind in "biufc":
        return torch.from_numpy(np.array(item_set))
    if isinstance(item_set, range):
        return str(item_set)
    return item_set if isinstance(item_set, torch.Tensor | Mapping) else plain(item_set)
