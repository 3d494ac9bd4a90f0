"""What identifies the minibatches of a chain, for states and other ranks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch.utils.data import IterDataPipe

from manyhop.errors import InputError
from manyhop.loading import check_placement, plain, rows_fact
from manyhop.loading.padding import Pad
from manyhop.memory.places import Place
from manyhop.sampling import CONTRACT_VERSION
from manyhop_graphbolt.graph.graph import FusedCSCSamplingGraph
from manyhop_graphbolt.items.sampler import ItemSampler
from manyhop_graphbolt.items.sets import HeteroItemSet, ItemSet
from manyhop_graphbolt.loader.chain import Chain
from manyhop_graphbolt.loader.columns import FeatureColumns
from manyhop_graphbolt.stages.features import FeatureFetcher
from manyhop_graphbolt.stages.layers import AllLayers
from manyhop_graphbolt.stages.stage import MiniBatchTransformer, is_ours


def check_placed(chain: Chain, placement: Place | None) -> None:
    """Raise InputError where a GPU that samples in groups could not read from the placement, or does not exist."""
    check_placement(placement, None)
    if placement is None:
        return
    if chain.grouped is None:
        raise InputError(
            "Expected placement only for minibatches that are moved to a GPU before they are sampled, got "
            f"{placement!r}. Leave it out, or begin the chain with copy_to('cuda')."
        )
    if placement in ("host", "cpu-cuda"):
        raise InputError(
            f"Expected a placement that a GPU samples from, got {placement!r}. Leave it out, and put copy_to('cuda') "
            "at the end of the chain: the CPU then samples and gathers."
        )


_OF_GRAPH = ("csc_indptr", "indices", "node_type_offset", "type_per_edge", "node_attributes", "edge_attributes")


class ChainFacts:
    """The ``Facts`` of a loader.

    Args:
        chain: of the loader.
        columns: of the loader.
        pad: of the loader.
    """

    def __init__(self, chain: Chain, columns: FeatureColumns, pad: Pad | None) -> None:
        self._chain, self._columns, self._pad = chain, columns, pad

    def of_ranks(self, seed: int | None) -> dict[str, object]:
        """Return what must be the same on all ranks, in the order in which differences are reported."""
        sampler = self._chain.sampler
        assert sampler is not None
        plan = sampler.plan
        facts: dict[str, object] = {"version of the sampling contract": CONTRACT_VERSION, "seed": seed}
        facts |= {name: getattr(plan, name) for name in ("num_items", "batch_size", "shuffle", "drop_last")}
        facts |= plain(self.of_state())
        return facts | {title: rows_fact(tensor) for title, tensor in self._columns.named()}

    def of_state(self) -> dict[str, object]:
        """Return what a state is recognised by."""
        source = self._chain.sampler
        assert source is not None
        facts: dict[str, object] = {"buffer_size": source.buffer_size, "minibatcher": _described(source.minibatcher)}
        facts["pad"] = self._pad
        facts["seed_parts"] = None if source.plan.parts is None else source.plan.parts.num_parts
        graphs: list[object] = []
        for i, stage in enumerate(self._chain.stages):
            if isinstance(stage, MiniBatchTransformer) and is_ours(stage) and not isinstance(stage, FeatureFetcher):
                facts[f"stage {i}"] = [type(stage).__name__, _arguments(stage, graphs)]
        for i, graph in enumerate(graphs):
            of_graph = f"graph {i}" if i else "graph"
            facts |= {f"{name} of the {of_graph}": getattr(graph, name, None) for name in _OF_GRAPH}
        return facts | {"items": _items(source.item_set)}


def cannot_resume(source: object) -> InputError:
    """Return the error of a chain that cannot be resumed, since the order of its items is no function of a seed."""
    name = type(source).__name__
    if not isinstance(source, ItemSampler):
        why = f"{name} decides which minibatches there are, and cannot begin in the middle of an epoch"
    elif not source.is_indexable:
        why = "the items of its ItemSampler can only be iterated. Make an ItemSet of tensors or lists"
    else:
        why = f"{name} has an __iter__ of its own. Define deal() instead"
    return InputError(
        "Expected a chain of an ItemSampler and of stages that keep the order of minibatches, to save and load where "
        f"it stands; here, {why}, or save at the end of an epoch."
    )


def _arguments(stage: MiniBatchTransformer, graphs: list[object]) -> dict[str, object]:
    """What a stage draws by; graphs are added to a list, and stand there by their numbers."""
    found = {
        name: value
        for name, value in vars(stage).items()
        if name not in ("datapipe", "transformer") and not hasattr(IterDataPipe, name)
    }
    function = stage.transformer
    if isinstance(function, AllLayers):
        found |= function.arguments()
    elif isinstance(function, partial):
        found |= dict(enumerate(function.args)) | function.keywords | {"function": function.func}
    return {str(name): _described(value, graphs) for name, value in found.items()}


def _described(value: object, graphs: list[object] | None = None) -> object:
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


def _items(item_set: object) -> object:
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
