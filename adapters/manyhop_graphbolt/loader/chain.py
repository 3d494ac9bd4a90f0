"""A chain of pipes: an item sampler and stages that handle minibatches one by one; its items, and samples of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyhop.errors import GraphError, InputError
from manyhop.graph import Graph, PlacedGraph
from manyhop.loading import BatchContext, current_key, own_gpu
from manyhop.loading.gpu.runtime import GPURuntime
from manyhop.memory.places import Place
from manyhop.sampling import BatchKey, NodeRequest, SampledSubgraph
from manyhop.sampling.contract import Engine
from manyhop.sampling.engines import placed_engine
from manyhop_dgl.samplers.keys import next_key
from manyhop_graphbolt.graph.topology import Topology, check_on_gpu
from manyhop_graphbolt.items.minibatch import MiniBatch, minibatcher_default, num_seeds
from manyhop_graphbolt.items.sampler import ItemSampler
from manyhop_graphbolt.stages.features import FeatureFetcher
from manyhop_graphbolt.stages.sampling import NeighborSampler, SubgraphSampler, begin_nodes
from manyhop_graphbolt.stages.stage import CopyTo, SeedEdgesExcluder, chain_of, is_of_this_package, is_ours, step
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
                own = isinstance(stage, NeighborSampler)
                own = own and type(stage).sample_subgraphs is NeighborSampler.sample_subgraphs
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
            index, count = stage.device.index, torch.cuda.device_count()
            if (index or 0) >= count:
                raise InputError(
                    f"Expected an available device in copy_to(), got {str(stage.device)!r} with {count} CUDA "
                    "devices. Leave copy_to out, or use 'cpu'."
                )
            return torch.device("cuda", torch.cuda.current_device() if index is None else index)
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
        self._chain, self._gpu = chain, gpu

    @property
    def graph(self) -> Graph | None:
        """The edges that a GPU samples; ``None`` if minibatches are not sampled in groups."""
        grouped = self._chain.grouped
        return None if grouped is None else grouped.stage.current()[0].graph

    def item(self, positions: Tensor) -> object:
        """Return the minibatch of the items at some positions, before any stage."""
        key = current_key()
        assert key is not None
        return self._chain.sampler.dressed(self._chain.sampler.items_of_several([positions], _CPU)[0], key)

    def inputs(self, positions: Sequence[Any]) -> Sequence[object]:
        """Return the items of multiple batches, before they are minibatches; moved if that is the first stage."""
        sampler, grouped, gpu = self._chain.sampler, self._chain.grouped, self._gpu
        if grouped is None or gpu is None:
            return [sampler.items_of_several([one], _CPU)[0] for one in positions]
        moves_first = sampler.minibatcher is minibatcher_default and isinstance(grouped.before[0], CopyTo)
        return sampler.items_of_several(positions, gpu.device if moves_first else _CPU)

    def place(self, device: torch.device, where: Place) -> GPUSampling:
        """Return the sampler of a GPU."""
        assert self._chain.grouped is not None
        return GPUSampling(self._chain.grouped.stage, device, where)

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
        sampling = self._chain.sampling
        assert sampling is not None
        item: Any = copy.copy(given) if isinstance(given, MiniBatch) else self._chain.sampler.dressed(given, key)
        count = num_seeds(item)
        with BatchContext(key, None) as draws:
            for stage in sampling.before:
                item = step(stage, item)
            request = NodeRequest(key=next_key(), seeds=topology.seeds(begin_nodes(item)[0]))
        return request, partial(Sampled, key, item, topology, draws.calls, count)

    def sample(self, positions: object) -> Any:
        """Sample around the items at some positions."""
        key, gpu, sampling = current_key(), self._gpu, self._chain.sampling
        assert key is not None
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
