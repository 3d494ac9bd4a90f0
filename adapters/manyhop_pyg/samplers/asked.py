"""Samplers with a ``_sample`` of the user's: it is called as PyG calls it, and what it returns is used."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, HeteroSamplerOutput, NegativeSampling, NodeSamplerInput

from manyhop.graph import HOMOGENEOUS_NODE, EdgeType, NodeType
from manyhop.loading import current_turn, making, next_key
from manyhop.sampling import BatchKey, EdgeRequest, EdgeSampler, NodeRequest
from manyhop_pyg.samplers.seed_edges import SeedEdges, edge_metadata
from manyhop_pyg.typing import Sample


class AskedSampler(Protocol):
    """What is asked: a ``NeighborSampler``."""

    @property
    def is_hetero(self) -> bool: ...

    def _sample(self, seed: Any, seed_time: Any = None) -> Sample: ...

    def with_reverses(self, out: Sample) -> Sample: ...

    def edge_request(self, index: EdgeSamplerInput, edge_type: EdgeType, key: BatchKey) -> EdgeRequest: ...


def ask_around_nodes(sampler: AskedSampler, index: NodeSamplerInput) -> Sample:
    """What ``sampler`` gives for seed nodes, with ``metadata``."""
    seed, time, node_type = index.node, index.time, index.input_type
    if node_type is not None:
        seed, time = {node_type: seed}, None if time is None else {node_type: time}
    out = sampler.with_reverses(sampler._sample(seed, time))
    out.metadata = (index.input_id, index.time)
    return out


def ask_around_edges(
    sampler: AskedSampler, edge_sampler: EdgeSampler, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None
) -> Sample:
    """The same for seed edges and their negatives, which ``edge_sampler`` draws."""
    request = sampler.edge_request(index, edge_sampler.edge_type, next_key())
    asked = _Asked(sampler, index.time, request.time_max)
    edges = copy.copy(edge_sampler)
    edges.sampler = asked
    sampled = edges.sample(request)
    trees, out = SeedEdges.relabelled(sampled).tree, asked.out
    if trees is not None:
        out.batch = trees if isinstance(out, HeteroSamplerOutput) else trees[HOMOGENEOUS_NODE]
    out = sampler.with_reverses(out)
    out.metadata = edge_metadata(sampled, neg_sampling, index.input_id, index.label, index.time)
    return out


class _Asked:
    """Stands for the engine where the endpoints of seed edges are sampled.

    Args:
        sampler: what is asked.
        time: ``[num_pos]``: times of the seed edges, as given.
        time_key: the same as time keys, which is how the engine is told the times of seeds.
    """

    def __init__(self, sampler: AskedSampler, time: Tensor | None, time_key: Tensor | None) -> None:
        self._sampler, self._time, self._key = sampler, time, time_key
        self.out: Sample = None

    def sample(self, request: NodeRequest) -> Any:
        """Ask; of what is returned, only ``tree`` is looked at."""
        hetero = self._sampler.is_hetero
        seed = dict(request.seeds) if hetero else request.seeds[HOMOGENEOUS_NODE]
        time: Tensor | dict[NodeType, Tensor] | None = None
        if request.time_max is not None:
            times = {node_type: self._given(keys) for node_type, keys in request.time_max.items()}
            time = times if hetero else times[HOMOGENEOUS_NODE]
        with making(request.key, current_turn()):
            self.out = self._sampler._sample(seed, time)
        batch = self.out.batch
        return SimpleNamespace(tree=batch if batch is None or hetero else {HOMOGENEOUS_NODE: batch})

    def _given(self, keys: Tensor) -> Tensor:
        """The given times of time keys."""
        assert self._time is not None
        assert self._key is not None
        ordered, order = self._key.sort()
        return self._time[order[torch.searchsorted(ordered, keys)]]
