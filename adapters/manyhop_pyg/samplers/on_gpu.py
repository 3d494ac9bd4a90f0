"""Sampling on a GPU by the engine, for the samplers of this package, and the inputs of loaders there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, NegativeSampling, NodeSamplerInput

from manyhop.graph import Graph, PlacedGraph
from manyhop.loading.gpu.samples import TensorPool, upload
from manyhop.loading.pipeline import BatchPlan
from manyhop.memory.places import Place
from manyhop.sampling import BatchKey, HGTSpec
from manyhop.sampling.contract import Engine
from manyhop.sampling.engines import Spec, placed_engine
from manyhop_pyg.samplers.exclude import Exclusion
from manyhop_pyg.samplers.hgt import HGTSampler
from manyhop_pyg.samplers.neighbor import NeighborSampler
from manyhop_pyg.samplers.requests import node_metadata
from manyhop_pyg.samplers.seeds import SeedEdges, columns_of_edges, finish_seed_edges
from manyhop_pyg.typing import Inputs, Metadata, Sample

if TYPE_CHECKING:
    from manyhop.loading.pipeline.gpu import GPUPositions
    from manyhop.sampling import GPUEdgeSampler


_NODES = {"node", "row", "col"}  # int64 for samplers
_IDS = _NODES | {"input_id"}
_MOST_BYTES = 64 << 20  # of all inputs; more are looked up on the host


class GPUInputs:
    """The columns of a loader's inputs on a GPU."""

    def __init__(self, given: Inputs, columns: dict[str, Tensor], positions: GPUPositions) -> None:
        self._given, self._positions = given, positions
        self._names = [name for name, column in columns.items() if name in _IDS and column.dtype == torch.int64]
        self._ids = [columns[name].contiguous() for name in self._names]
        self._others = {name: column for name, column in columns.items() if name not in self._names}

    def of(self, plan: BatchPlan, epoch: int, batches: Sequence[int]) -> InputGroup:
        """Return the inputs of batches on the GPU, looked up on the current stream."""
        (index, *ids), sizes = self._positions(plan, epoch, batches, self._ids)
        columns = {"input_id": index} | dict(zip(self._names, ids, strict=True))
        columns |= {name: column.index_select(0, index) for name, column in self._others.items()}
        return InputGroup(self._given, columns, sizes)


class InputGroup(Sequence[Inputs]):
    """Concatenated inputs of multiple batches; the inputs of one batch are created on access."""

    def __init__(self, given: Inputs, columns: dict[str, Tensor], sizes: list[int]) -> None:
        self._given, self.columns, self.sizes = given, columns, sizes
        self._begins = list(accumulate(sizes, initial=0))

    @property
    def of_nodes(self) -> bool:
        """Whether these are seed nodes, without times."""
        return type(self._given) is NodeSamplerInput and self._given.time is None

    @property
    def input_type(self) -> Any:
        """The node or edge type; ``None`` without types."""
        return self._given.input_type

    def input_ids(self) -> list[Tensor]:
        """Return ``input_id`` of each batch, as views that autograd does not track as one tensor."""
        return list(self.columns["input_id"].unsafe_split_with_sizes(self.sizes))

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, i: int | slice) -> Any:
        first, end, _ = (slice(i, i + 1) if isinstance(i, int) else i).indices(len(self))
        if isinstance(i, int) and not 0 <= i < len(self):
            raise IndexError(i)
        rows = slice(self._begins[first], self._begins[max(first, end)])
        columns = {name: column[rows].data for name, column in self.columns.items()}
        if isinstance(i, slice):
            return InputGroup(self._given, columns, self.sizes[first:end])
        one = object.__new__(type(self._given))
        one.__dict__.update(self._given.__dict__, **columns)
        return one


def inputs_on(device: torch.device, given: Inputs, sampler: BaseSampler) -> GPUInputs | None:
    """Copy inputs to a GPU; return ``None`` if they are too large, or have times, which the host needs."""
    if type(given) not in (NodeSamplerInput, EdgeSamplerInput) or getattr(sampler, "is_temporal", False):
        return None
    columns = {name: value for name, value in vars(given).items() if isinstance(value, Tensor)}
    if sum(column.nbytes for column in columns.values()) > _MOST_BYTES:
        return None
    from manyhop.loading.pipeline.gpu import GPUPositions

    there = {name: column.to(device, torch.int64 if name in _NODES else None) for name, column in columns.items()}
    return GPUInputs(given, there, GPUPositions(device))


OwnSampler: TypeAlias = NeighborSampler | HGTSampler
Finish: TypeAlias = Callable[[], list[Sample]]
"""Waits for the sizes of the launched batches and returns their samples, in PyG's classes."""


class GPUSampling:
    """A sampler's work on one GPU. Safe to call from several threads."""

    def __init__(self, sampler: OwnSampler, device: torch.device, where: Place) -> None:
        self.device = device
        self._placed = PlacedGraph.of(sampler.topology.graph, device, where)
        self._topology = replace(sampler.topology, graph=self._placed.graph)
        self._lock = threading.Lock()
        self.numbers = TensorPool(device, torch.arange)
        """Numbers of seeds that have none."""
        self._spec: Spec | None = None
        self.follow(sampler)

    @property
    def graph(self) -> Graph:
        """The topology, where the GPU reads it."""
        return self._placed.graph

    @classmethod
    def of(cls, sampler: OwnSampler, device: torch.device, where: Place) -> GPUSampling:
        """Return the object of a sampler, shared by its loaders."""
        found = sampler.gpu_samplings.get((device, where))
        if not isinstance(found, cls) or found._placed is not PlacedGraph.find(sampler.topology.graph, device, where):
            found = sampler.gpu_samplings[device, where] = cls(sampler, device, where)
        return found

    def follow(self, sampler: OwnSampler) -> tuple[Engine, SeedEdges[GPUEdgeSampler]]:
        """Return the engines for the sampler's current settings."""
        with self._lock:
            if sampler.spec is not self._spec:
                from manyhop.sampling import GPUEdgeSampler  # a lazy name, whose lookup takes microseconds

                spec = sampler.spec
                self._engine = placed_engine(self._placed, spec)
                disjoint = not isinstance(spec, HGTSpec) and spec.disjoint
                make_edges = partial(GPUEdgeSampler, self._engine, disjoint=disjoint, device=self.device)
                self._edges = SeedEdges(self._topology, make_edges)
                self._spec = spec
            return self._engine, self._edges

    def begin_nodes(self, sampler: OwnSampler, inputs: Sequence[NodeSamplerInput], keys: Sequence[BatchKey]) -> Finish:
        """Enqueue the sampling around seed nodes, of several batches, on the current stream."""
        engine, _ = self.follow(sampler)
        metadata: list[Metadata]
        if type(inputs) is InputGroup and inputs.of_nodes and isinstance(sampler, NeighborSampler):
            from manyhop.sampling.gpu.launch.seeds import SeedGroup

            input_type = inputs.input_type
            node_type = sampler.requests.node_types.get(input_type) or sampler.topology.node_type(input_type)
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
        """Return ``input_id`` (by default 0, 1, ...) and times of the seeds of each batch."""
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
        """Launch the sampling around seed edges, without the edges of ``exclusion``."""
        from manyhop.sampling.gpu.edges import PendingEdges

        _, edges = self.follow(sampler)
        inputs = list(inputs)
        engines = edges.of(inputs[0], neg_sampling, exclude_true=exclude_true)
        requests = [
            sampler.requests.of_edges(
                index,
                [engine.edge_type for engine in engines],
                key,
                neg_sampling,
                exclude=None if exclusion is None else exclusion.of(index),
                device=self.device,
            )
            for index, key in zip(inputs, keys, strict=True)
        ]
        pending = PendingEdges(engines, requests)
        columns = [columns_of_edges(index) for index in inputs]
        sent = iter(upload([column for of_batch in columns for column in of_batch], self.device))

        def finish() -> list[Sample]:
            outs: list[Sample] = []
            for index, of_batch, (sampled, seed_edges) in zip(inputs, columns, pending.finish(), strict=True):
                there = [next(sent) for _ in of_batch]
                metadata = finish_seed_edges(index, sampled, seed_edges, neg_sampling, there)
                out = sampler.node_output(sampled[0].subgraph)
                out.metadata = metadata
                outs.append(out)
            return outs

        return finish
