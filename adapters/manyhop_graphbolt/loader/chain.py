"""A chain of pipes, cut into a source of items and stages that handle items one by one."""

from __future__ import annotations

from collections.abc import Sequence
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
    CopyTo,
    SeedEdgesExcluder,
    chain_of,
    first_draw,
    is_of_this_package,
    is_ours,
    pipe_before,
)
from manyhop_graphbolt.types import Pipe

_WITHOUT_DRAWS = (FeatureFetcher, CopyTo, SeedEdgesExcluder, SubgraphSampler)  # of which a pipe is the end


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
        """The sampled graph; ``None``: unknown, for a sampler of the user."""
        begun = getattr(getattr(self.stage, "datapipe", None), "transformer", None)
        return begun.args[0] if isinstance(begun, partial) else getattr(self.stage, "graph", None)


@dataclass(frozen=True)
class AllAtOnce(Sampling):
    """The same where one call samples all layers: on a GPU, for groups of minibatches."""

    layers: AllLayers

    @property
    def graph(self) -> FusedCSCSamplingGraph:
        """The sampled graph."""
        return self.layers.graph

    @property
    def moves_first(self) -> bool:
        """Whether items are moved to the GPU before all else."""
        return isinstance(self.before[0], CopyTo)

    @property
    def joins(self) -> bool:
        """Whether the stages after sampling draw nothing, so that they run for multiple minibatches at once."""
        return all(isinstance(stage, _WITHOUT_DRAWS) and is_of_this_package(stage) for stage in self.after)

    @property
    def is_of_this_package(self) -> bool:
        """Whether no code of the user runs before minibatches are sampled."""
        return all(is_of_this_package(stage) and is_ours(stage) for stage in self.before)


class Chain:
    """A chain of pipes. The engine cuts the batches if it begins with an item sampler, and samples them in groups if
    they are moved to a GPU before all layers are sampled by one stage; all else is run stage by stage.

    Pipes that change the number or the order of items, such as torch's ``filter``, are sources: they are iterated, with
    all that comes before them.

    Args:
        pipe: the last one.
    """

    def __init__(self, pipe: Pipe) -> None:
        self.source, self.stages, self.functions = chain_of(pipe)
        self.first_draw = first_draw(self.source)
        before = pipe_before(self.source)
        self.before = None if before is None else Chain(before)

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
        stages = self.stages
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
        return sampling if isinstance(sampling, AllAtOnce) and any(map(to_gpu, sampling.before)) else None

    @cached_property
    def fetchers(self) -> list[FeatureFetcher]:
        """The stages that fetch features."""
        return [stage for stage in self.stages if isinstance(stage, FeatureFetcher)]

    def all_fetchers(self) -> list[FeatureFetcher]:
        """Return the stages that fetch features, those before the source included."""
        return [*([] if self.before is None else self.before.all_fetchers()), *self.fetchers]

    @property
    def moves(self) -> bool:
        """Whether items are moved to a GPU."""
        return any(map(to_gpu, self.stages))


def gpu_of(chain: Chain) -> torch.device | None:
    """Return the GPU that minibatches are made on, or moved to: that of ``copy_to``, else the process's, if it uses
    one.

    Raises:
        InputError: a GPU that is not there.
    """
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
