"""The seeds of a chain: items by position, and samples around them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyhop.errors import GraphError, InputError
from manyhop.graph import Graph, PlacedGraph
from manyhop.loading import BatchContext, current_key
from manyhop.loading.gpu.runtime import GPURuntime
from manyhop.memory.places import Place
from manyhop.sampling import BatchKey, NodeRequest, SampledSubgraph
from manyhop.sampling.engines import Engine, placed_engine
from manyhop_graphbolt.graph.topology import Topology, check_on_gpu
from manyhop_graphbolt.items.minibatch import MiniBatch, minibatcher_default, num_seeds
from manyhop_graphbolt.loader.chain import Chain
from manyhop_graphbolt.stages.layers import AllLayers
from manyhop_graphbolt.stages.sampling import begin_nodes
from manyhop_graphbolt.stages.stage import step


class Sampled(NamedTuple):
    """A minibatch whose layers are sampled, but not yet added to it."""

    key: BatchKey
    item: MiniBatch
    topology: Topology
    sample: SampledSubgraph
    calls: int
    """Number of draws so far."""

    num_seeds: int


class _Asked(NamedTuple):
    key: BatchKey
    item: MiniBatch
    request: NodeRequest
    calls: int
    num_seeds: int


class GPUSampling:
    """Samples the layers of minibatches on one GPU."""

    def __init__(self, layers: AllLayers, device: torch.device, where: Place) -> None:
        self.device = device
        self._layers, self._where = layers, where
        self._placed = self._place()

    def _place(self) -> tuple[Topology, Engine, PlacedGraph]:
        topology, spec = self._layers.current()
        check_on_gpu(spec, self.device)
        placed = PlacedGraph.of(topology.graph, self.device, self._where)
        engine = placed_engine(placed, spec)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # its tables are complete, for the streams of other threads
        return topology, engine, placed

    def current(self) -> tuple[Topology, Engine]:
        """Return the current topology of the graph, and its engine."""
        placed = self._placed
        if self._layers.current()[0] is not placed[0]:
            if self._where == "sharded":
                raise GraphError(
                    "Expected an unchanged graph, since it is spread over multiple GPUs, but it has changed. Create a "
                    "new loader on all ranks."
                )
            placed = self._placed = self._place()  # in one piece: other threads read it
        return placed[:2]


class Source:
    """The ``SeedSource`` of a loader."""

    has_times = True  # stages that need times sample one minibatch at a time

    def __init__(self, chain: Chain, gpu: GPURuntime | None) -> None:
        self._chain, self._gpu = chain, gpu

    @property
    def graph(self) -> Graph | None:
        """The edges that a GPU samples; ``None`` if minibatches are not sampled in groups."""
        grouped = self._chain.grouped
        return None if grouped is None else grouped.layers.current()[0].graph

    @property
    def of_nodes(self) -> bool:
        """Nothing is known of the seeds: minibatchers and stages before sampling may prepare them."""
        return False

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
        plain = sampler.minibatcher is minibatcher_default
        return sampler.items_of_several(positions, gpu.device if plain and grouped.moves_first else _CPU)

    def place(self, device: torch.device, where: Place) -> GPUSampling:
        """Return the sampler of a GPU."""
        assert self._chain.grouped is not None
        return GPUSampling(self._chain.grouped.layers, device, where)

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
        pending = engine.begin([one.request for one in asked])
        return lambda: [
            Sampled(one.key, one.item, topology, sample, one.calls, one.num_seeds)
            for one, sample in zip(asked, pending.finish(), strict=True)
        ]

    def _ask(self, topology: Topology, given: object, key: BatchKey) -> _Asked:
        """Run the stages before sampling, for items or for a minibatch that the user has passed."""
        sampling = self._chain.sampling
        assert sampling is not None
        item: Any = copy.copy(given) if isinstance(given, MiniBatch) else self._chain.sampler.dressed(given, key)
        count = num_seeds(item)
        with BatchContext(key, None) as draws:
            for stage in sampling.before:
                item = step(stage, item)
            request = sampling.layers.request(begin_nodes(item)[0], topology)
        return _Asked(key, item, request, draws.calls, count)

    def sample(self, positions: object) -> Any:
        """Sample around the items at some positions."""
        key, gpu, sampling = current_key(), self._gpu, self._chain.sampling
        assert key is not None
        assert sampling is not None
        inputs = self.inputs([positions])
        if gpu is not None and gpu.sampling is not None:
            return self.begin(gpu.sampling, inputs, [key])()[0]
        topology, spec = sampling.layers.current()
        asked = self._ask(topology, inputs[0], key)
        engine = topology.sampler(spec, next(iter(asked.request.seeds.values())).device)
        return Sampled(key, asked.item, topology, engine.sample(asked.request), asked.calls, asked.num_seeds)


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


_CPU = torch.device("cpu")
