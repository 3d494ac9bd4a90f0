"""A chain of pipes, cut into what makes items and what is done to them one by one: which of it the engine runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch

from manyhop.errors import InputError
from manyhop.loading import own_gpu
from manyhop_graphbolt.graph.graph import FusedCSCSamplingGraph
from manyhop_graphbolt.items.sampler import ItemSampler
from manyhop_graphbolt.stages.features import FeatureFetcher
from manyhop_graphbolt.stages.layers import AllLayers
from manyhop_graphbolt.stages.sampling import SubgraphSampler
from manyhop_graphbolt.stages.stage import (
    REST,
    CopyTo,
    Relay,
    SeedEdgesExcluder,
    chain_of,
    is_filter,
    is_of_this_package,
    is_ours,
    num_parts_before,
    upstream_of,
)
from manyhop_graphbolt.types import Pipe

_WITHOUT_DRAWS = (FeatureFetcher, CopyTo, SeedEdgesExcluder, SubgraphSampler)  # of which a pipe is the end


@dataclass(frozen=True)
class Run:
    """Stages that draw one after the other."""

    first_call: int
    """What their draws are counted from."""

    stages: Sequence[Pipe]


@dataclass(frozen=True)
class Sampling:
    """The stages of a chain that samples."""

    stage: Pipe
    """After which a minibatch has its layers."""

    before: Sequence[Pipe]
    """The stages before that one."""

    after: Sequence[Pipe]
    """The stages after it, up to the last one of this package."""

    @property
    def graph(self) -> object:
        """What is sampled; ``None``: unknown, for a sampler of the user's."""
        begun = getattr(getattr(self.stage, "datapipe", None), "transformer", None)
        return begun.args[0] if isinstance(begun, partial) else getattr(self.stage, "graph", None)


@dataclass(frozen=True)
class AllAtOnce(Sampling):
    """The same where one call samples all layers: on a GPU, for groups of minibatches."""

    layers: AllLayers

    @property
    def graph(self) -> FusedCSCSamplingGraph:
        """What is sampled."""
        return self.layers.graph

    @property
    def moves_first(self) -> bool:
        """Whether items are moved to the GPU before all else."""
        return isinstance(self.before[0], CopyTo)

    @property
    def joins(self) -> bool:
        """Whether what comes after sampling is done for several minibatches at once: it draws nothing."""
        return all(isinstance(stage, _WITHOUT_DRAWS) and is_of_this_package(stage) for stage in self.after)

    @property
    def is_of_this_package(self) -> bool:
        """Whether no code of the user runs before minibatches are sampled."""
        return all(is_of_this_package(stage) and is_ours(stage) for stage in self.before)


@dataclass(frozen=True)
class Chain:
    """A chain of pipes. The engine cuts the batches if it begins with an item sampler, and samples them in groups if
    they are moved to a GPU before all layers are sampled by one stage; all else is run stage by stage."""

    source: Pipe
    """The pipe that makes the items: an item sampler, or one that a loader cannot look into."""

    relay: Relay | None
    """What the source takes its items from, if these are of another chain."""

    ahead: Sequence[Run]
    """What is done to each item, up to the last stage that samples, fetches, moves, ..."""

    rest: Sequence[Run]
    """Functions of the user after that."""

    @cached_property
    def sampler(self) -> ItemSampler | None:
        """The item sampler whose order is that of the batches; ``None``: the items are iterated."""
        source = self.source
        if not isinstance(source, ItemSampler) or not source.is_indexable:
            return None
        return source if type(source).__iter__ is ItemSampler.__iter__ else None

    @cached_property
    def sampling(self) -> Sampling | None:
        """The stage that samples, and those around it; ``None``: there is none."""
        stages = self.ahead[0].stages if self.ahead else ()
        for i, stage in enumerate(stages):
            layers = getattr(stage, "transformer", None)
            if isinstance(layers, AllLayers):
                return AllAtOnce(stage, stages[:i], stages[i + 1 :], layers)
            if isinstance(stage, SubgraphSampler):
                return Sampling(stage, stages[:i], stages[i + 1 :])
        return None

    @property
    def grouped(self) -> AllAtOnce | None:
        """How minibatches are sampled in groups, on a GPU; ``None``: they are not."""
        sampling = self.sampling
        if not isinstance(sampling, AllAtOnce) or len(self.ahead) != 1:
            return None
        return sampling if any(map(to_gpu, sampling.before)) else None

    @cached_property
    def fetchers(self) -> list[FeatureFetcher]:
        """The stages that fetch features."""
        return [stage for run in self.ahead for stage in run.stages if isinstance(stage, FeatureFetcher)]

    @property
    def moves(self) -> bool:
        """Whether items are moved to a GPU."""
        return any(to_gpu(stage) for run in self.ahead for stage in run.stages)

    def has_functions(self, *, rest: bool) -> bool:
        """Return whether functions of the user are among the stages, the ``rest`` included or not."""
        return (rest and bool(self.rest)) or not all(is_ours(stage) for run in self.ahead for stage in run.stages)


def read_chain(pipe: Pipe) -> Chain:
    """Return the chain that ends with a pipe.

    Pipes that change the number or the order of items, such as those that users write, begin a chain of their own. A
    :class:`Relay` is put before those. Torch's ``filter`` does not: it leaves out items one by one.
    """
    segments: list[tuple[Sequence[Pipe], Sequence[Pipe]]] = []
    filters: list[Pipe] = []
    source, stages = chain_of(pipe)
    while is_filter(source):
        segments.insert(0, (stages.ours, [*stages.rest, *filters]))
        filters = [source]
        source, stages = chain_of(source.datapipe)
    segments.insert(0, (stages.ours, [*stages.rest, *filters]))
    first, runs, cut = num_parts_before(source), [], 0
    for k, (ours, rest) in enumerate(segments, first):
        runs += [Run(2 * k * REST, ours), Run(2 * k * REST + REST, rest)]
        cut = len(runs) - 1 if ours else cut
    name, relay = upstream_of(source), None
    if name is not None:
        relay = getattr(source, name)
        if not isinstance(relay, Relay):
            relay = Relay(relay)
            setattr(source, name, relay)
    ahead, rest_of_all = ([run for run in some if run.stages] for some in (runs[:cut], runs[cut:]))
    return Chain(source, relay, ahead, rest_of_all)


def gpu_of(pipe: Pipe) -> torch.device | None:
    """The GPU that minibatches are made on, or moved to: that of ``copy_to``, else the process's, if it uses one.

    Args:
        pipe: the last pipe of a chain.

    Raises:
        InputError: a GPU that is not there.
    """
    for stage in _stages(pipe):
        if to_gpu(stage):
            index, count = stage.device.index, torch.cuda.device_count()
            if (index or 0) >= count:
                raise InputError(
                    f"Expected an available device in copy_to(), got {str(stage.device)!r} with {count} CUDA "
                    "devices. Leave copy_to out, or use 'cpu'."
                )
            return torch.device("cuda", torch.cuda.current_device() if index is None else index)
    return own_gpu()


def _stages(pipe: Pipe) -> Iterator[Pipe]:
    """Yield all stages of a chain, those before a pipe of the user, too."""
    chain = read_chain(pipe)
    if chain.relay is not None:
        yield from _stages(chain.relay.datapipe)
    for run in (*chain.ahead, *chain.rest):
        yield from run.stages


def to_gpu(stage: Pipe) -> bool:
    """Whether a stage moves items to a GPU."""
    return isinstance(stage, CopyTo) and stage.device.type == "cuda"
