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
from manyhop.loading.pipeline import OnStream
from manyhop.memory.places import Place
from manyhop.sampling import BatchKey, NodeRequest, SampledSubgraph
from manyhop.sampling.engines import Engine, placed_engine
from manyhop_graphbolt.graph.topology import Topology, check_on_gpu
from manyhop_graphbolt.items.minibatch import MiniBatch, minibatcher_default, num_seeds
from manyhop_graphbolt.loader.chain import AllAtOnce, Chain, Sampling
from manyhop_graphbolt.stages.layers import AllLayers, are_nested, sample_of
from manyhop_graphbolt.stages.stage import step


class Keyed(NamedTuple):
    """An item that was made elsewhere; if the loader has a GPU, ``OnStream``."""

    key: BatchKey
    item: object


class Sampled(NamedTuple):
    """A minibatch whose layers are sampled, but not yet in it."""

    key: BatchKey
    item: MiniBatch
    topology: Topology | None
    """The sampled topology; ``None``: layers were sampled one by one, and the sample is by type."""

    sample: SampledSubgraph
    calls: int
    """Draws that were made."""

    num_seeds: int


class _Asked(NamedTuple):
    key: BatchKey
    item: MiniBatch
    request: NodeRequest
    calls: int
    num_seeds: int


class GPUSampling:
    """Samples the layers of minibatches on one GPU.

    Args:
        layers: the stage.
        device: the GPU.
        where: the memory that the GPU reads edges from.
    """

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
            torch.cuda.synchronize(self.device)  # its tables are there, for the streams of other threads
        return topology, engine, placed

    def current(self) -> tuple[Topology, Engine]:
        """Return the current topology of the graph, and its engine.

        Raises:
            GraphError: the graph has changed, but is spread over multiple GPUs.
        """
        placed = self._placed
        if self._layers.current()[0] is not placed[0]:
            if self._where == "sharded":
                raise GraphError(
                    "Expected the graph to stay as it was, since it is spread over several GPUs, but it has changed. "
                    "Make a new loader, on all ranks."
                )
            placed = self._placed = self._place()  # in one piece: other threads read it
        return placed[:2]


class Source:
    """The ``SeedSource`` of a loader.

    Args:
        chain: of the loader.
        gpu: of the loader; ``None``: it has none.
    """

    has_times = True  # stages that need times sample one minibatch at a time

    def __init__(self, chain: Chain, gpu: GPURuntime | None) -> None:
        self._chain, self._gpu = chain, gpu

    @property
    def graph(self) -> Graph | None:
        """The edges that a GPU samples; ``None`` where minibatches are not sampled in groups."""
        grouped = self._chain.grouped
        return None if grouped is None else grouped.layers.current()[0].graph

    @property
    def of_nodes(self) -> bool:
        """Nothing is known of the seeds: minibatchers and stages before sampling may prepare them."""
        return False

    def item(self, positions: Tensor | Keyed) -> Keyed:
        """Return the item of one batch, and its key: of the items at some positions, or one that was given."""
        if isinstance(positions, Keyed):
            return self._adopted(positions)
        sampler, key = self._chain.sampler, current_key()
        assert sampler is not None
        assert key is not None
        return Keyed(key, sampler.dressed(sampler.items_of_several([positions], _CPU)[0], key))

    def inputs(self, positions: Sequence[Any]) -> Sequence[object]:
        """Return the items of multiple batches, before they are minibatches; moved, where that is done first."""
        sampler, grouped, gpu = self._chain.sampler, self._chain.grouped, self._gpu
        if sampler is None:
            return positions
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
        sampler, sampling = self._chain.sampler, self._chain.sampling
        assert isinstance(sampling, AllAtOnce)
        item: Any
        if isinstance(given, Keyed):
            key, item = self._adopted(given)
            item = copy.copy(item) if isinstance(item, MiniBatch) else item  # it may be begun once more
        else:
            assert sampler is not None
            item = sampler.dressed(given, key)
        count = num_seeds(item)
        with self._draws(key) as draws:
            for stage in sampling.before:
                item = step(stage, item)
            request = sampling.layers.request(item, topology)
        return _Asked(key, item, request, draws.calls, count)

    def _draws(self, key: BatchKey) -> BatchContext:
        """Return the context in which the stages of a batch draw, from the first one on."""
        return BatchContext(key, None, self._chain.first_draw)

    def sample(self, positions: object) -> Any:
        """Sample around the items at some positions."""
        key, gpu, sampling = current_key(), self._gpu, self._chain.sampling
        assert key is not None
        inputs = self.inputs([positions])
        if gpu is not None and gpu.sampling is not None:
            return self.begin(gpu.sampling, inputs, [key])()[0]
        assert sampling is not None
        if not isinstance(sampling, AllAtOnce):
            return self._sample_by_layers(sampling, inputs[0], key)
        topology, spec = sampling.layers.current()
        asked = self._ask(topology, inputs[0], key)
        engine = topology.sampler(spec, next(iter(asked.request.seeds.values())).device)
        return Sampled(key, asked.item, topology, engine.sample(asked.request), asked.calls, asked.num_seeds)

    def _sample_by_layers(self, sampling: Sampling, given: object, key: BatchKey) -> Sampled:
        """Run the stages up to the one that samples layer by layer."""
        assert self._chain.sampler is not None
        item: Any = self._chain.sampler.dressed(given, key)
        count = num_seeds(item)
        with self._draws(key) as draws:
            for stage in (*sampling.before, sampling.stage):
                item = step(stage, item)
        if not are_nested(item.sampled_subgraphs):
            raise InputError(
                "Expected layers whose rows begin with their columns, and are the columns of the layer before, to pad "
                f"them, got others from a {type(sampling.stage).__name__}. Leave pad out."
            )
        return Sampled(key, item, None, sample_of(item.sampled_subgraphs), draws.calls, count)

    def _adopted(self, given: Keyed) -> Keyed:
        """Return an item that was made elsewhere, for the stream of this thread."""
        if self._gpu is None or not isinstance(given.item, OnStream):
            return given
        return Keyed(given.key, self._gpu.streams.adopt(given.item))


def given_minibatch(chain: Chain, seeds: object) -> MiniBatch:
    """Return the minibatch of seeds that a user gives: with labels only if it is one already.

    Raises:
        InputError: no seeds; a chain whose minibatches are not those of an item sampler, or are made by a minibatcher
            of the user, which may need more of an item than its seeds.
    """
    sampler = chain.sampler
    if sampler is None:
        raise InputError(
            "Expected a chain that begins with an ItemSampler over indexable items, to make one minibatch, got "
            f"{type(chain.source).__name__}. Take minibatches from an iteration."
        )
    if isinstance(seeds, MiniBatch):
        return copy.copy(seeds)
    parts = list(seeds.values()) if isinstance(seeds, Mapping) else [seeds]
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        raise InputError(f"Expected seeds as a tensor, tensors by type, or a MiniBatch, got a {type(seeds).__name__}.")
    if sampler.minibatcher is not minibatcher_default:
        raise InputError("Expected a MiniBatch, since this chain has a minibatcher of its own, got seeds.")
    return MiniBatch(seeds=seeds)  # type: ignore[arg-type]  # tensors


_CPU = torch.device("cpu")
