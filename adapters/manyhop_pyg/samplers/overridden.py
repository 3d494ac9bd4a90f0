"""Samplers with a ``_sample`` of the user's: it is called as PyG calls it, and what it returns is used."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, HeteroSamplerOutput, NegativeSampling, NodeSamplerInput

from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_NODE, NodeType
from manyhop.loading import BatchContext, current_turn
from manyhop.sampling import EdgeRequest, EdgeSampler, NodeRequest
from manyhop_pyg.samplers.seed_edges import SeedEdges, edge_metadata
from manyhop_pyg.samplers.typed_seeds import node_metadata, seeds_of
from manyhop_pyg.typing import Sample


class OverriddenSampler(Protocol):
    """A ``NeighborSampler`` whose subclass overrides ``_sample``."""

    @property
    def is_hetero(self) -> bool: ...

    def _sample(self, seed: object, seed_time: object = None) -> Sample: ...

    def with_reverses(self, out: Sample) -> Sample: ...


def call_around_nodes(sampler: OverriddenSampler, index: NodeSamplerInput) -> Sample:
    """What ``sampler`` gives for seed nodes, with ``metadata``."""
    seeds, times = seeds_of(index)
    arguments = (seeds, times or None) if sampler.is_hetero else (index.node, index.time)
    out = sampler.with_reverses(sampler._sample(*arguments))
    out.metadata = node_metadata(index, index.input_id, index.time)
    return out


def call_around_edges(
    sampler: OverriddenSampler,
    edge_sampler: EdgeSampler,
    request: EdgeRequest,
    index: EdgeSamplerInput,
    neg_sampling: NegativeSampling | None,
) -> Sample:
    """The same for seed edges and their negatives, which ``edge_sampler`` draws for a request made of ``index``."""
    if index.time is not None and index.time.dim() == 2:
        raise InputError(
            f"{type(sampler).__name__} has a _sample of its own, which gets one time per seed, got start and end."
        )
    engine = _UserEngine(sampler, index.time, request.time_max)
    edges = copy.copy(edge_sampler)
    edges.sampler = engine
    sampled = edges.sample(request)
    trees, out = SeedEdges.relabelled(sampled).tree, engine.out
    if trees is not None:
        out.batch = trees if isinstance(out, HeteroSamplerOutput) else trees[HOMOGENEOUS_NODE]
    out = sampler.with_reverses(out)
    out.metadata = edge_metadata(sampled, neg_sampling, index.input_id, index.label, index.time)
    return out


class _UserEngine:
    """Stands for the engine where the endpoints of seed edges are sampled.

    Args:
        sampler: is called.
        time: ``[num_pos]``: times of the seed edges, as given.
        time_key: the same as time keys, by which the engine finds the times of seeds.
    """

    def __init__(self, sampler: OverriddenSampler, time: Tensor | None, time_key: Tensor | None) -> None:
        self._sampler, self._time, self._key = sampler, time, time_key
        self.out: Sample = None

    def sample(self, request: NodeRequest) -> Any:
        """Call the sampler; of what is returned, only ``tree`` is read."""
        hetero = self._sampler.is_hetero
        seed = dict(request.seeds) if hetero else request.seeds[HOMOGENEOUS_NODE]
        time: Tensor | dict[NodeType, Tensor] | None = None
        if request.time_max is not None:
            times = {node_type: self._given(keys) for node_type, keys in request.time_max.items()}
            time = times if hetero else times[HOMOGENEOUS_NODE]
        with BatchContext(request.key, current_turn()):
            self.out = self._sampler._sample(seed, time)
        batch = self.out.batch
        return SimpleNamespace(tree=batch if batch is None or hetero else {HOMOGENEOUS_NODE: batch})

    def _given(self, keys: Tensor) -> Tensor:
        """The given times of time keys."""
        assert self._time is not None
        assert self._key is not None
        ordered, order = self._key.sort()
        return self._time[order[torch.searchsorted(ordered, keys)]]
