"""A chain of pipes: an item sampler, and stages that handle minibatches one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from manyhop.errors import InputError
from manyhop.loading import own_gpu
from manyhop_graphbolt.items.sampler import ItemSampler
from manyhop_graphbolt.stages.features import FeatureFetcher
from manyhop_graphbolt.stages.layers import AllLayers
from manyhop_graphbolt.stages.sampling import NeighborSampler, SubgraphSampler
from manyhop_graphbolt.stages.stage import CopyTo, SeedEdgesExcluder, chain_of, is_of_this_package, is_ours
from manyhop_graphbolt.types import Pipe

_WITHOUT_DRAWS = (FeatureFetcher, CopyTo, SeedEdgesExcluder)


@dataclass(frozen=True)
class Sampling:
    """The stage that samples all layers by one call, and the stages around it."""

    stage: NeighborSampler
    before: Sequence[Pipe]

    after: Sequence[Pipe]
    """Up to the last stage of this package."""

    @property
    def layers(self) -> AllLayers:
        """The sampler of the stage."""
        return self.stage.layers

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

    @property
    def moves(self) -> bool:
        """Whether items are moved to a GPU."""
        return any(map(to_gpu, self.stages))


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
