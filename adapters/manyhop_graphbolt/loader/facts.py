"""The engine's view of a loader: its features, and facts that identify its minibatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import is_

import torch
from torch.utils.data import IterDataPipe

from manyhop.errors import FeatureError, InputError
from manyhop.features import DistributedRows, RowRequest, ShardedRows
from manyhop.loading import check_placement, plain, rows_fact
from manyhop.loading.padding import Pad
from manyhop.memory.places import Place
from manyhop_graphbolt.features.feature import Feature, own_feature, title_of
from manyhop_graphbolt.features.tensors import TorchBasedFeature
from manyhop_graphbolt.graph.fused_csc import ATTRIBUTES, TENSORS
from manyhop_graphbolt.graph.graph import FusedCSCSamplingGraph
from manyhop_graphbolt.items.sets import HeteroItemSet, ItemSet
from manyhop_graphbolt.loader.chain import Chain, to_gpu
from manyhop_graphbolt.stages.features import FeatureFetcher
from manyhop_graphbolt.stages.sampling import NeighborSampler
from manyhop_graphbolt.stages.stage import MiniBatchTransformer, is_ours


class PlacedFeatures:
    """Features, each where a GPU reads it; of some, ``there`` has another source, by the id of their tensor."""

    def __init__(self, tables: list[object], there: dict[int, object]) -> None:
        self.tables, self._there = tables, there
        self.sources = [there.get(id(table), table) for table in tables]

    def redirect(self, requests: Sequence[RowRequest]) -> None:
        """Let requests read from the sources for the GPU; features that were added later are unchanged."""
        for request in requests:
            request.source = self._there.get(id(request.source), request.source)

    def shared_objects(self) -> frozenset[int]:
        """Return nothing: minibatches share no object with a store."""
        return frozenset()


class FeatureColumns:
    """The ``Columns`` of a loader."""

    kept_rows = None

    def __init__(self, fetchers: Sequence[FeatureFetcher]) -> None:
        self._wanted = [(one.feature_store, key, title_of(*key)) for one in fetchers for key in one.feature_keys()]

    def _found(self) -> dict[str, Feature]:
        """Return the features with a source of rows, by title. Missing ones are reported for the minibatch."""
        found: dict[str, Feature] = {}
        for store, key, title in self._wanted:
            with suppress(FeatureError):
                feature = own_feature(store, key)
                if feature is not None and feature.table() is not None:
                    found[title] = feature
        return found

    @property
    def complete(self) -> bool:
        """Whether a GPU can read all of them: none has a ``read`` of the user."""
        return self._found().keys() == {title for _, _, title in self._wanted}

    def named(self) -> list[tuple[str, object]]:
        """Return title and tensor of the features that the loader places: those without a cache of the user."""
        return [(title, one.table()) for title, one in self._found().items() if isinstance(one, TorchBasedFeature)]

    def place(self, source: Callable[[str, object], object], device: torch.device) -> PlacedFeatures:
        """Return the features that the stores have now."""
        there = {id(table): source(title, table) for title, table in self.named()}
        return PlacedFeatures(list(self.tables().values()), there)

    def fits(self, placed: PlacedFeatures) -> bool:
        """Return whether no feature was replaced, added or removed since. Called for each batch."""
        tables = list(self.tables().values())
        return len(tables) == len(placed.tables) and all(map(is_, tables, placed.tables))

    def tables(self) -> dict[str, object]:
        """Return the sources of rows, by title."""
        return {title: feature.table() for title, feature in self._found().items()}

    def exchanged(self) -> dict[str, ShardedRows | DistributedRows]:
        """Return the features whose rows ranks exchange, by title."""
        return {name: t for name, t in self.tables().items() if isinstance(t, ShardedRows | DistributedRows)}


def check_exchanged(chain: Chain, *, distributed: bool, runs_ahead: bool) -> None:
    """Raise InputError if ranks exchange rows, but do not run in step, or cannot exchange."""
    columns = FeatureColumns(chain.fetchers)
    found = columns.exchanged()
    if not found:
        return
    why = f"as ranks exchange rows of {next(iter(found))} for every minibatch"
    if not distributed:
        raise InputError(
            f"Expected a DistributedItemSampler, {why}, got a {type(chain.sampler).__name__}. Use one on all ranks, or "
            "keep the rows where each rank reads alone: placement='shared', or 'sharded' with device='cuda'."
        )
    fetchers = [one for one in chain.fetchers if FeatureColumns([one]).exchanged()]
    if len(fetchers) > 1:
        raise InputError(
            f"Expected one fetch_feature, {why}, got {len(fetchers)}. Name all features of the ranks in one of them."
        )
    before = chain.stages[: chain.stages.index(fetchers[0])]
    on_gpu = any(map(to_gpu, before))
    if on_gpu and (chain.grouped is None or not runs_ahead):
        raise InputError(
            f"Expected copy_to('cuda') before one stage that samples all layers, or after fetch_feature, {why}, got it "
            "elsewhere, or overlap_feature_fetch=False. Move it."
        )
    if on_gpu and not columns.complete:
        raise InputError(
            f"Expected only features that a GPU can read, {why}, got some with a read of their own. Make them "
            "TorchBasedFeatures, or move copy_to('cuda') after fetch_feature."
        )
    if not on_gpu and any(isinstance(rows, DistributedRows) for rows in found.values()):
        raise InputError(
            f"Expected copy_to('cuda') before sampling, {why}, by GPUs, got a chain that fetches on the CPU. Move it "
            "there, or pass placement='sharded' to the feature, without device."
        )


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
            f"Expected a placement that a GPU samples from, got {placement!r}. Leave it out, and move copy_to('cuda') "
            "to the end of the chain: the CPU then samples and gathers."
        )


class ChainFacts:
    """The ``Facts`` of a loader."""

    def __init__(self, chain: Chain, columns: FeatureColumns, pad: Pad | None) -> None:
        self._chain, self._columns, self._pad = chain, columns, pad

    def of_ranks(self) -> dict[str, object]:
        """Return the facts that must be equal on all ranks, in the order of error messages."""
        facts: dict[str, object] = {"num_items": self._chain.sampler.plan.num_items} | plain(self.of_state())
        return facts | {title: rows_fact(tensor) for title, tensor in self._columns.named()}

    def of_state(self) -> dict[str, object]:
        """Return the facts that identify a state."""
        source, graphs = self._chain.sampler, list[object]()
        facts: dict[str, object] = {"minibatcher": _described(source.minibatcher, graphs), "pad": self._pad}
        facts["seed_parts"] = None if source.plan.parts is None else source.plan.parts.num_parts
        for i, stage in enumerate(self._chain.stages):
            if isinstance(stage, MiniBatchTransformer) and is_ours(stage) and not isinstance(stage, FeatureFetcher):
                facts[f"stage {i}"] = [type(stage).__name__, _described(_arguments(stage), graphs)]
        for i, graph in enumerate(graphs):
            of_graph = f"graph {i}" if i else "graph"
            facts |= {f"{name} of the {of_graph}": getattr(graph, name) for name in (*TENSORS, *ATTRIBUTES)}
        return facts | {"items": _described(source.item_set, graphs)}


def _arguments(stage: MiniBatchTransformer) -> dict[object, object]:
    """Return the arguments that a stage draws by."""
    function = stage.transformer
    if isinstance(stage, NeighborSampler):
        return {"layers": stage.arguments()}
    found: dict[object, object] = {
        name: value
        for name, value in vars(stage).items()
        if name not in ("datapipe", "transformer") and not hasattr(IterDataPipe, name)
    }
    if isinstance(function, partial):
        found |= dict(enumerate(function.args)) | function.keywords | {"function": function.func}
    return found


def _described(value: object, graphs: list[object]) -> object:
    """Describe a value: functions by their names, items by their values, graphs by their numbers in a list."""
    if isinstance(value, FusedCSCSamplingGraph):
        if not any(graph is value for graph in graphs):
            graphs.append(value)
        return f"graph {next(i for i, graph in enumerate(graphs) if graph is value)}"
    if isinstance(value, HeteroItemSet):
        value = value.by_type
    elif isinstance(value, ItemSet):
        value = value.names, value.items
    if isinstance(value, list | tuple):
        return [_described(part, graphs) for part in value]
    if isinstance(value, dict):
        return {str(name): _described(part, graphs) for name, part in value.items()}
    if callable(value):
        return getattr(value, "__qualname__", f"a {type(value).__name__}")
    return value
