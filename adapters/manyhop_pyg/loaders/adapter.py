"""The objects that a loader passes to the engine: its seeds, and the assembly of batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor
from torch.utils.data._utils.pin_memory import pin_memory
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BaseSampler, NegativeSampling, NodeSamplerInput

from manyhop.arguments import positions
from manyhop.graph import Graph
from manyhop.loading import current_batch, next_key
from manyhop.loading.gpu.samples import empty_sample
from manyhop.loading.pipeline import RankBatch
from manyhop.memory.places import Place
from manyhop.sampling import BatchKey
from manyhop.sampling.contract import Engine
from manyhop.system.ranges import ranged
from manyhop_embedding import RowsAhead
from manyhop_pyg.batch.assemble import Gathered, finish_trainable
from manyhop_pyg.batch.join import finish_batches, join, join_one, samples_itself
from manyhop_pyg.samplers.on_gpu import Finish, GPUInputs, GPUSampling, inputs_on
from manyhop_pyg.samplers.requests import TypedNodeInput, input_of, seeds_of
from manyhop_pyg.samplers.seeds import TypedEdgeInput
from manyhop_pyg.typing import Batch, Inputs, Positions, Sample, Transform

if TYPE_CHECKING:
    from manyhop.loading.gpu.runtime import GPURuntime
    from manyhop_pyg.batch.assemble import Joining
    from manyhop_pyg.samplers.exclude import Exclusion


@dataclass(kw_only=True, slots=True)
class Seeds:
    """The ``SeedSource`` of a loader: its sampler and inputs, as of now."""

    sampler: BaseSampler
    given: Inputs
    """The inputs of all seeds."""
    num_items: int
    own_order: bool
    """Whether the loader cuts the seeds into batches, not a user's sampler."""
    on_host: bool
    """Whether the host needs the inputs of a batch that a GPU samples."""
    gpu: GPURuntime | None
    transform: Transform | None
    """The user's function of samples."""
    neg_sampling: NegativeSampling | None = None
    exclude_true: bool = False
    exclusion: Exclusion | None = None

    @property
    def graph(self) -> Graph | None:
        """The topology of one of manyhop's samplers without overridden methods."""
        method = "sample_from_nodes" if self.of_nodes else "sample_from_edges"
        return self.sampler.topology.graph if samples_itself(self.sampler, method) else None

    @property
    def of_nodes(self) -> bool:
        """Whether seeds are nodes."""
        return isinstance(self.given, NodeSamplerInput)

    @property
    def has_times(self) -> bool:
        """Whether seeds have the times that the sampler needs: given ones, or those of the nodes."""
        sampler, given = self.sampler, self.given
        if not getattr(sampler, "is_temporal", False) or given.time is not None:
            return True
        if not self.of_nodes:
            return isinstance(given, TypedEdgeInput) and all(part.time is not None for part in given.parts.values())
        topology = sampler.topology
        return all(topology.node_type(name) in topology.node_time for name in seeds_of(given)[0])

    def at(self, index: Positions) -> Inputs:
        """Return the sampler's inputs at positions ``index``."""
        given = self.given
        if not self.own_order or current_batch() is None or not isinstance(index, Tensor):
            return given[positions(index, self.num_items)]
        if type(given) is NodeSamplerInput:
            return input_of(NodeSamplerInput, columns_of_nodes(given, index))
        return given[index]

    def inputs(self, positions: Sequence[Positions]) -> list[Inputs]:
        """Return the inputs of multiple batches, looked up at once."""
        given, tensors = self.given, [one for one in positions if isinstance(one, Tensor) and one.dtype == torch.int64]
        alone = len(positions) == 1 or len(tensors) < len(positions)
        if alone or isinstance(given, TypedNodeInput | TypedEdgeInput):
            return [self.at(index) for index in positions]
        index = torch.cat(tensors)
        together = columns_of_nodes(given, index) if type(given) is NodeSamplerInput else vars(self.at(index))
        sizes = [index.numel() for index in tensors]
        columns = {k: v.split_with_sizes(sizes) for k, v in together.items() if isinstance(v, Tensor)}
        return [
            input_of(type(given), together | {name: parts[i] for name, parts in columns.items()})
            for i in range(len(positions))
        ]

    def place(self, device: torch.device, where: Place) -> GPUSampling:
        """Return the sampler's work on a GPU, shared by all its loaders."""
        return GPUSampling.of(self.sampler, device, where)

    def engine(self, sampling: GPUSampling) -> Engine:
        """Return the sampler's current engine."""
        return sampling.follow(self.sampler)[0]

    def lookup(self, device: torch.device) -> GPUInputs | None:
        """Return the inputs on the GPU; ``None`` if they are too many, or needed on the host."""
        return None if self.on_host else inputs_on(device, self.given, self.sampler)

    def begin(self, sampling: GPUSampling, inputs: Sequence[Inputs], keys: Sequence[BatchKey]) -> Finish:
        """Launch the sampling around the inputs of multiple batches."""
        if self.of_nodes:
            return sampling.begin_nodes(self.sampler, inputs, keys)
        return sampling.begin_edges(
            self.sampler, inputs, keys, self.neg_sampling, exclude_true=self.exclude_true, exclusion=self.exclusion
        )

    @ranged("sample")
    def around(self, inputs: Inputs) -> Sample:
        """Sample around some inputs, on the GPU if that samples."""
        if self.gpu is not None and self.gpu.sampling is not None:
            return self.begin(self.gpu.sampling, [inputs], [next_key()])()[0]
        if self.of_nodes:
            return self.sampler.sample_from_nodes(inputs)
        own: dict[str, object] = {"exclude_true": True} if self.exclude_true else {}
        if self.exclusion is not None:
            own["exclude"] = self.exclusion.of(inputs)
        return self.sampler.sample_from_edges(inputs, neg_sampling=self.neg_sampling, **own)

    def sample(self, positions: Positions) -> Sample:
        """Sample around the inputs at some positions, transformed."""
        out = self.around(self.at(positions))
        return out if self.transform is None else self.transform(out)


def columns_of_nodes(given: NodeSamplerInput, index: Tensor) -> dict[str, object]:
    """Return the attributes of ``given[index]``, in a quarter of the time that PyG's indexing takes."""
    id_, node, time = (
        None if column is None else column.index_select(0, index) for column in (given.input_id, given.node, given.time)
    )
    return {"input_id": index if id_ is None else id_, "node": node, "time": time, "input_type": given.input_type}


T = TypeVar("T")

_USUAL_ATTRIBUTES = frozenset({"_mapping", "_key", "_parent", "_cached_attr"})  # of one of PyG's stores


@dataclass(kw_only=True, slots=True)
class Batches:
    """The ``Assembler`` of a loader, as of now."""

    sampler: BaseSampler
    collate_fn: Callable[[Positions], Sample | Batch]
    filter_fn: Callable[[Sample], Batch]
    joining: Callable[[], Joining]
    """Returns the data, rows and options that samples are joined with, as of now."""
    transform: Transform | None
    in_thread: bool
    gathers_groups: bool
    samples_alone: bool
    runs_user_code: bool
    pins: bool
    """Whether batches are copied to pinned memory."""
    gathers_only: bool
    """Whether the thread leaves all work but gathers to the caller, since other ranks wait for it."""
    trains: bool
    """Whether batches have rows of embeddings, which belong to the thread that trains."""

    @property
    def hands_out(self) -> bool:
        """Whether :meth:`hand_out` changes batches."""
        return self.gathers_only or self.trains

    def collate(self, positions: Positions) -> Sample | Batch:
        """Call ``collate_fn``."""
        value = self.collate_fn(positions)
        return pinned(value) if self.pins and self.in_thread else value

    def assemble(self, sample: Sample) -> Batch | Gathered:
        """Call ``filter_fn``, or only gather rows if :meth:`hand_out` does the rest."""
        if self.gathers_only:
            return join_one(self.joining(), sample)
        batch = self.filter_fn(sample)
        return pinned(batch) if self.pins else batch

    def assemble_group(
        self, samples: Sequence[Sample], rank_batches: Sequence[RankBatch] | None
    ) -> tuple[list[Batch], int]:
        """Join samples with the features of the data, by one gather."""
        joining = self.joining()
        batches, outs, nbytes = join(joining, samples, [])
        if rank_batches is not None:
            finish_batches(joining, batches, outs, rank_batches)
        return batches, nbytes

    def contents(self, sample: Sample) -> dict[str, int]:
        """Return how many seeds, nodes and edges a sample has."""
        return contents_of(sample)

    def values(self, batch: Batch | Gathered) -> list[Collection[object]]:
        """Return the attribute values of PyG's batch, or the batch itself."""
        if isinstance(batch, Gathered):
            return [*self.values(batch.batch), *batch.values()]
        stores = [batch._store] if type(batch) is Data else batch.stores if type(batch) is HeteroData else None
        if stores is None:
            return [[batch]]
        found: list[Collection[object]] = []
        for store in stores:  # once per batch: no calls
            if not store.__dict__.keys() <= _USUAL_ATTRIBUTES:
                return [[batch]]  # such as sampled edges in addition to their reverses
            values = store._mapping.values()
            found.append(values)
            for value in values:
                if type(value) is RowsAhead:
                    found.append(value.tensors())
        return found

    def empty(self, device: torch.device) -> Sample:
        """Return a sample without nodes and edges, in PyG's terms."""
        sample = empty_sample(self.sampler.topology.graph, device)
        return self.sampler.node_output(replace(sample, num_sampled_nodes=None, num_sampled_edges=None))

    def hand_out(self, batch: Batch | Gathered) -> Batch:
        """Return the complete batch, with the rows that embeddings have now."""
        if isinstance(batch, Gathered):
            batch, out, joining, rank_batch = batch
            finish_batches(joining, [batch], [out], [rank_batch])
        if self.trains:
            finish_trainable(batch)
        return batch


def pinned(batch: T) -> T:
    """Return a batch in pinned memory."""
    made: T = pin_memory(batch)  # type: ignore[no-untyped-call]  # of torch
    return made


def contents_of(out: Sample) -> dict[str, int]:
    """Return how many seeds, nodes and edges a sample has."""
    nodes, edges = out.node, out.row
    if isinstance(nodes, dict):
        counts = sum(map(Tensor.numel, nodes.values())), sum(map(Tensor.numel, edges.values()))
    else:
        counts = nodes.numel(), edges.numel()
    return {"seeds": out.metadata[0].numel(), "nodes": counts[0], "edges": counts[1]}
