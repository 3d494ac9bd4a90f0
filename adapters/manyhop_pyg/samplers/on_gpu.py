"""What the samplers of this package do on a GPU: several batches at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, NegativeSampling, NodeSamplerInput

from manyhop.graph import Graph, PlacedGraph
from manyhop.loading.gpu.tensor_pool import TensorPool
from manyhop.loading.gpu.upload import upload
from manyhop.memory.places import Place
from manyhop.sampling import BatchKey, HGTSpec
from manyhop.sampling.engines import Engine, Spec, placed_engine
from manyhop_pyg.loaders.gpu_inputs import InputGroup
from manyhop_pyg.samplers.exclude import Exclusion
from manyhop_pyg.samplers.hgt import HGTSampler
from manyhop_pyg.samplers.neighbor import NeighborSampler, has_own_sample
from manyhop_pyg.samplers.seed_edges import SeedEdges, edge_metadata
from manyhop_pyg.samplers.typed_edges import TypedEdgeInput, typed_metadata
from manyhop_pyg.samplers.typed_negatives import negatives_of
from manyhop_pyg.samplers.typed_seeds import node_metadata
from manyhop_pyg.typing import Metadata, Sample

if TYPE_CHECKING:
    from manyhop.sampling import GPUEdgeSampler

OwnSampler: TypeAlias = NeighborSampler | HGTSampler
Finish: TypeAlias = Callable[[], list[Sample]]
"""Gives the samples of the batches that were begun, in PyG's terms and on the GPU; waits for their sizes."""


class GPUSampling:
    """A sampler's work on one GPU. Safe to call from several threads.

    Args:
        sampler: whose topology it is.
        device: the GPU.
        where: the memory that the GPU reads the topology from.
    """

    def __init__(self, sampler: OwnSampler, device: torch.device, where: Place) -> None:
        self.device = device
        self._placed = PlacedGraph.of(sampler.topology.graph, device, where)
        self._topology = replace(sampler.topology, graph=self._placed.graph)
        self._lock = threading.Lock()
        self.numbers = TensorPool(device, torch.arange)
        """Numbers of seeds that have none."""
        self._spec: Spec | None = None
        self._follow(sampler)

    @property
    def graph(self) -> Graph:
        """The topology, where the GPU reads it."""
        return self._placed.graph

    @classmethod
    def of(cls, sampler: OwnSampler, device: torch.device, where: Place) -> GPUSampling:
        """That of a sampler, shared by all loaders that use it."""
        found = sampler.gpu_samplings.get((device, where))
        if not isinstance(found, cls) or found._placed is not PlacedGraph.find(sampler.topology.graph, device, where):
            found = sampler.gpu_samplings[device, where] = cls(sampler, device, where)
        return found

    def _follow(self, sampler: OwnSampler) -> tuple[Engine, SeedEdges[GPUEdgeSampler]]:
        """The engine for what the sampler is to do now."""
        with self._lock:
            if sampler.spec is not self._spec:
                from manyhop.sampling import GPUEdgeSampler  # looked up by a function, which takes microseconds

                spec = sampler.spec
                self._engine = placed_engine(self._placed, spec)
                disjoint = not isinstance(spec, HGTSpec) and spec.disjoint
                make_edges = partial(GPUEdgeSampler, self._engine, disjoint=disjoint, device=self.device)
                self._edges = SeedEdges(self._topology, make_edges)
                self._spec = spec
            return self._engine, self._edges

    def engine(self, sampler: OwnSampler) -> Engine:
        """Return what samples as the sampler is to do now."""
        return self._follow(sampler)[0]

    def begin_nodes(
        self,
        sampler: OwnSampler,
        inputs: Sequence[NodeSamplerInput],
        keys: Sequence[BatchKey],
    ) -> Finish:
        """Enqueue the sampling around seed nodes, of several batches, on the current stream.

        Args:
            sampler: that of this object.
            inputs: of each batch.
            keys: of each batch.
        """
        engine, _ = self._follow(sampler)
        metadata: list[Metadata]
        if type(inputs) is InputGroup and inputs.of_nodes and isinstance(sampler, NeighborSampler):
            from manyhop.sampling.gpu.launch.seeds import SeedGroup

            node_type = sampler.topology.node_type(inputs.input_type)
            pending = engine.begin(SeedGroup(keys, node_type, inputs.columns["node"], inputs.sizes))
            metadata = [(input_id, None) for input_id in inputs.input_ids()]
        else:
            pending = engine.begin([sampler.node_request(*both) for both in zip(inputs, keys, strict=True)])
            metadata = self._about(inputs)

        def finish() -> list[Sample]:
            outs = [sampler.node_output(sample) for sample in pending.finish()]
            for out, about in zip(outs, metadata, strict=True):
                out.metadata = about
            return outs

        return finish

    def _about(self, inputs: Sequence[NodeSamplerInput]) -> list[Metadata]:
        """Return what batches call their seeds, as given, else 0, 1, ..., and the times of these."""
        if inputs[0].input_id is None:
            return [(self.numbers.take(index.node.shape[0]), None) for index in inputs]
        sent = iter(upload([part for index in inputs for part in (index.input_id, index.time)], self.device))
        return [node_metadata(index, input_id, time) for index, input_id, time in zip(inputs, sent, sent, strict=True)]

    def begin_edges(
        self,
        sampler: NeighborSampler,
        inputs: Sequence[EdgeSamplerInput],
        keys: Sequence[BatchKey],
        neg_sampling: NegativeSampling | None,
        *,
        exclude_true: bool,
        exclusion: Exclusion | None,
    ) -> Finish:
        """The same around seed edges, without the edges of ``exclusion``."""
        _, edges = self._follow(sampler)
        inputs = list(inputs)
        if isinstance(inputs[0], TypedEdgeInput):
            return self._begin_types(
                sampler, edges, inputs, keys, neg_sampling, exclude_true=exclude_true, exclusion=exclusion
            )
        engine = edges.prepare(inputs[0].input_type, neg_sampling, exclude_true=exclude_true)
        requests = [
            sampler.requests.of_edges(
                index,
                engine.edge_type,
                key,
                neg_sampling,
                exclude=None if exclusion is None else exclusion.of(index),
                device=self.device,
            )
            for index, key in zip(inputs, keys, strict=True)
        ]
        pending = engine.begin(requests)
        parts = [part for index in inputs for part in (index.input_id, index.label, index.time)]
        metadata = upload(parts, self.device)

        def finish() -> list[Sample]:
            outs: list[Sample] = []
            for i, sampled in enumerate(pending.finish()):
                out = sampler.node_output(edges.relabelled(sampled))
                out.metadata = edge_metadata(sampled, neg_sampling, *metadata[3 * i : 3 * i + 3])
                outs.append(out)
            return outs

        return finish

    def _begin_types(
        self,
        sampler: NeighborSampler,
        edges: SeedEdges[GPUEdgeSampler],
        inputs: Sequence[TypedEdgeInput],
        keys: Sequence[BatchKey],
        neg_sampling: NegativeSampling | None,
        *,
        exclude_true: bool,
        exclusion: Exclusion | None,
    ) -> Finish:
        """The same around seed edges of several types in each batch."""
        from manyhop.sampling.gpu.typed_edges import PendingTypedEdges

        engines = [edges.prepare(t, negatives_of(neg_sampling, t), exclude_true=exclude_true) for t in inputs[0].parts]
        requests = [
            sampler.requests.of_edge_types(
                index,
                [engine.edge_type for engine in engines],
                key,
                neg_sampling,
                exclude=None if exclusion is None else exclusion.of(index),
                device=self.device,
            )
            for index, key in zip(inputs, keys, strict=True)
        ]
        pending = PendingTypedEdges(engines, requests)
        tensors = [[index.input_id, *_columns(index)] for index in inputs]
        sent = iter(upload([tensor for of_batch in tensors for tensor in of_batch], self.device))

        def finish() -> list[Sample]:
            outs: list[Sample] = []
            for index, (sampled, seed_edges) in zip(inputs, pending.finish(), strict=True):
                input_id = next(sent)
                assert input_id is not None
                columns = [(next(sent), next(sent), next(sent)) for _ in engines]
                metadata = typed_metadata(index, input_id, sampled, seed_edges, neg_sampling, columns)
                out = sampler.node_output(sampled[0].subgraph)
                out.metadata = metadata
                outs.append(out)
            return outs

        return finish


def _columns(index: TypedEdgeInput) -> list[Tensor | None]:
    """Return ids, labels and times of seed edges, type by type."""
    return [column for part in index.parts.values() for column in (part.input_id, part.label, part.time)]


def samples_on_gpu(sampler: BaseSampler, method: str) -> bool:
    """Whether a sampler is one of ours, whose ``method`` nobody has replaced, nor what it calls."""
    own = getattr(HGTSampler if isinstance(sampler, HGTSampler) else NeighborSampler, method)
    return (
        isinstance(sampler, NeighborSampler | HGTSampler)
        and getattr(type(sampler), method) is own
        and method not in vars(sampler)
        and not (isinstance(sampler, NeighborSampler) and has_own_sample(sampler))
    )
