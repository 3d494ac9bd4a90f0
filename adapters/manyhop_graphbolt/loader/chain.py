"""A chain of pipes, and the engine's view of it: its items, samples of them, its features, and facts about it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import IterDataPipe

from manyhop.errors import FeatureError, GraphError, InputError
from manyhop.features import DistributedRows, RowRequest, ShardedRows
from manyhop.graph import Graph, PlacedGraph
from manyhop.loading import BatchContext, check_placement, next_key, own_gpu, plain, rows_fact
from manyhop.loading.gpu.runtime import GPURuntime
from manyhop.loading.padding import Pad
from manyhop.memory.places import Place
from manyhop.sampling import BatchKey, NodeRequest, SampledSubgraph
from manyhop.sampling.contract import Engine
from manyhop.sampling.engines import placed_engine
from manyhop_dgl.samplers.arguments import draw
from manyhop_dgl.samplers.plan import as_device
from manyhop_graphbolt.features.feature import Feature, TorchBasedFeature, own_feature, title_of
from manyhop_graphbolt.graph.graph import FusedCSCSamplingGraph
from manyhop_graphbolt.graph.topology import ATTRIBUTES, TENSORS, Topology, check_on_gpu
from manyhop_graphbolt.items.minibatch import MiniBatch, minibatcher_default, num_seeds
from manyhop_graphbolt.items.sampler import HeteroItemSet, ItemSampler, ItemSet
from manyhop_graphbolt.stages.links import SeedEdgesExcluder
from manyhop_graphbolt.stages.sampling import NeighborSampler, SubgraphSampler, begin_nodes
from manyhop_graphbolt.stages.stage import (
    CopyTo,
    FeatureFetcher,
    MiniBatchTransformer,
    chain_of,
    is_of_this_package,
    is_ours,
    key_of_batch,
    step,
)
from manyhop_graphbolt.types import Pipe

_WITHOUT_DRAWS = (FeatureFetcher, CopyTo, SeedEdgesExcluder)
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Sampling:
    """The stage that samples all layers by one call, and the stages around it."""

    stage: NeighborSampler
    before: Sequence[Pipe]

    after: Sequence[Pipe]
    """Up to the last stage of this package."""

    @property
    def joins(self) -> bool:
        """Whether the stages after sampling draw nothing, so that they run for multiple minibatches at once."""
        return all(isinstance(stage, _WITHOUT_DRAWS) and is_of_this_package(stage) for stage in self.after)

    @property
    def is_of_this_package(self) -> bool:
        """Whether no code of the user runs before minibatches are sampled."""
        return all(is_of_this_package(stage) and is_ours(stage) for stage in self.before)


class Chain:
    """A chain of pipes. Batches are sampled in groups if they are moved to a GPU before one stage samples all layers;
    everything else runs stage by stage."""

    def __init__(self, pipe: Pipe) -> None:
        source, self.stages, self.functions = chain_of(pipe)
        if not isinstance(source, ItemSampler) or type(source).__iter__ is not ItemSampler.__iter__:
            raise InputError(
                "Expected a chain of an ItemSampler and of stages that handle minibatches one by one, got a "
                f"{type(source).__name__}. Use transform() or map(), or iterate over the pipe without a DataLoader."
            )
        self.sampler = source

    @cached_property
    def sampling(self) -> Sampling | None:
        """The stage that samples all layers by one call; ``None`` without one."""
        for i, stage in enumerate(self.stages):
            if isinstance(stage, SubgraphSampler):
                own = type(stage).sample_subgraphs is NeighborSampler.sample_subgraphs
                return Sampling(stage, self.stages[:i], self.stages[i + 1 :]) if own else None  # type: ignore[arg-type]
        return None

    @property
    def grouped(self) -> Sampling | None:
        """How minibatches are sampled in groups, on a GPU; ``None``: they are not."""
        sampling = self.sampling
        return sampling if sampling is not None and any(map(to_gpu, sampling.before)) else None

    @cached_property
    def fetchers(self) -> list[FeatureFetcher]:
        """The stages that fetch features."""
        return [stage for stage in self.stages if isinstance(stage, FeatureFetcher)]


def gpu_of(chain: Chain) -> torch.device | None:
    """Return the GPU of ``copy_to``, or the process's GPU if it uses one."""
    for stage in chain.stages:
        if to_gpu(stage):
            return as_device(stage.device)
    return own_gpu()


def to_gpu(stage: Pipe) -> bool:
    """Return whether a stage moves items to a GPU."""
    return isinstance(stage, CopyTo) and stage.device.type == "cuda"


class Sampled(NamedTuple):
    """A minibatch whose layers are sampled, but not yet added to it."""

    key: BatchKey
    item: MiniBatch
    topology: Topology
    calls: int
    """Number of draws so far."""

    num_seeds: int
    sample: SampledSubgraph


class GPUSampling:
    """Samples the layers of minibatches on one GPU."""

    def __init__(self, stage: NeighborSampler, device: torch.device, where: Place) -> None:
        self.device = device
        self._stage, self._where = stage, where
        self._placed = self._place()

    def _place(self) -> tuple[Topology, Engine, PlacedGraph]:
        topology, spec = self._stage.current()
        check_on_gpu(spec, self.device)
        placed = PlacedGraph.of(topology.graph, self.device, self._where)
        engine = placed_engine(placed, spec)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # its tables are complete, for the streams of other threads
        return topology, engine, placed

    def current(self) -> tuple[Topology, Engine]:
        """Return the current topology of the graph, and its engine."""
        placed = self._placed
        if self._stage.current()[0] is not placed[0]:
            if self._where == "sharded":
                raise GraphError(
                    "Expected an unchanged graph, since it is spread over multiple GPUs, but it has changed. Create a "
                    "new loader on all ranks."
                )
            placed = self._placed = self._place()  # in one piece: other threads read it
        return placed[:2]


class Source:
    """The ``SeedSource`` of a loader."""

    of_nodes = False  # nothing is known of the seeds: minibatchers and stages before sampling may prepare them
    has_times = True  # stages that need times sample one minibatch at a time

    def __init__(self, chain: Chain, gpu: GPURuntime | None) -> None:
        self.chain, self.gpu = chain, gpu

    @property
    def graph(self) -> Graph | None:
        """The edges that a GPU samples; ``None`` if minibatches are not sampled in groups."""
        grouped = self.chain.grouped
        return None if grouped is None else grouped.stage.current()[0].graph

    def inputs(self, positions: Sequence[Any]) -> Sequence[object]:
        """Return the items of multiple batches, before they are minibatches; moved if that is the first stage."""
        sampler, grouped, gpu = self.chain.sampler, self.chain.grouped, self.gpu
        plain = grouped is not None and sampler.minibatcher is minibatcher_default
        moves_first = grouped is not None and isinstance(grouped.before[0], CopyTo)
        return sampler.items_of_several(positions, gpu.device if gpu is not None and plain and moves_first else _CPU)

    def place(self, device: torch.device, where: Place) -> GPUSampling:
        """Return the sampler of a GPU."""
        assert self.chain.grouped is not None
        return GPUSampling(self.chain.grouped.stage, device, where)

    def engine(self, sampling: GPUSampling) -> Engine:
        """Return the engine that samples the current graph."""
        return sampling.current()[1]

    def lookup(self, device: torch.device) -> None:
        """Do nothing: items are looked up on the host."""

    def begin(
        self, sampling: GPUSampling, inputs: Sequence[object], keys: Sequence[BatchKey]
    ) -> Callable[[], list[Any]]:
        """Run the stages before sampling for multiple batches, and begin to sample around their seeds."""
        topology, engine = sampling.current()
        asked = [self._ask(topology, *one) for one in zip(inputs, keys, strict=True)]
        pending = engine.begin([request for request, _ in asked])
        return lambda: [sampled(sample) for (_, sampled), sample in zip(asked, pending.finish(), strict=True)]

    def _ask(
        self, topology: Topology, given: object, key: BatchKey
    ) -> tuple[NodeRequest, Callable[[SampledSubgraph], Sampled]]:
        """Run the stages before sampling, for items or for a minibatch that the user has passed."""
        sampling = self.chain.sampling
        assert sampling is not None
        item: Any = copy.copy(given) if isinstance(given, MiniBatch) else self.chain.sampler.dressed(given, key)
        count = num_seeds(item)
        with BatchContext(key, None) as draws:
            for stage in sampling.before:
                item = step(stage, item)
            request = NodeRequest(key=next_key(draw), seeds=topology.seeds(begin_nodes(item)[0]))
        return request, partial(Sampled, key, item, topology, draws.calls, count)

    def sample(self, positions: object) -> Any:
        """Sample around the items at some positions."""
        key, gpu, sampling = key_of_batch(), self.gpu, self.chain.sampling
        assert sampling is not None
        inputs = self.inputs([positions])
        if gpu is not None and gpu.sampling is not None:
            return self.begin(gpu.sampling, inputs, [key])()[0]
        topology, spec = sampling.stage.current()
        request, sampled = self._ask(topology, inputs[0], key)
        return sampled(topology.sampler(spec, next(iter(request.seeds.values())).device).sample(request))


def given_minibatch(chain: Chain, seeds: object) -> MiniBatch:
    """Return the minibatch of seeds that a user passes: with labels only if it is one already."""
    if isinstance(seeds, MiniBatch):
        return copy.copy(seeds)
    parts = list(seeds.values()) if isinstance(seeds, Mapping) else [seeds]
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        raise InputError(f"Expected seeds as a tensor, tensors by type, or a MiniBatch, got a {type(seeds).__name__}.")
    if chain.sampler.minibatcher is not minibatcher_default:
        raise InputError("Expected a MiniBatch, since this chain has its own minibatcher, got seeds.")
    return MiniBatch(seeds=seeds)  # type: ignore[arg-type]  # tensors


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
        sampler = self._chain.sampler
        facts: dict[str, object] = {"num_items": sampler.plan.num_items}
        facts |= {"drop_uneven_inputs": sampler.deal().uneven == "drop", **plain(self.of_state())}
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
        names = ("graph", "fanouts", "_prob_name", "_replace", "_dependency")
        return {"layers": {name: getattr(stage, name) for name in names}}
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
        value = value.names, value._items
    if isinstance(value, list | tuple):
        return [_described(part, graphs) for part in value]
    if isinstance(value, dict):
        return {str(name): _described(part, graphs) for name, part in value.items()}
    if callable(value):
        return getattr(value, "__qualname__", f"a {type(value).__name__}")
    return value
