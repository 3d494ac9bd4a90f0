"""The seeds of a loader of DGL's kind: seeds of batches by position, and samples around them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import dgl
import torch
from dgl.dataloading import BlockSampler
from torch import Tensor

from manyhop.errors import GraphError, InputError
from manyhop.graph import Graph
from manyhop.loading import current_batch, next_key
from manyhop.loading.pipeline import Padded, Stats
from manyhop.memory.places import Place
from manyhop.sampling import BatchKey, NodeRequest
from manyhop.sampling.contract import Engine
from manyhop.system.ranges import ranged
from manyhop_dgl.graph.graph import Graph as OwnGraph
from manyhop_dgl.graph.topology import Topology
from manyhop_dgl.loader.cores import WorkerInit
from manyhop_dgl.loader.seeds import MOST, GivenBatches, GPUSeeds, Indices, Seeds, SeedsOfBatches
from manyhop_dgl.nested import all_in_nested
from manyhop_dgl.samplers.arguments import read_exclude, read_seeds
from manyhop_dgl.samplers.edges import as_seed_nodes, as_tensors, sampler_of_nodes
from manyhop_dgl.samplers.neighbor import EngineSampler, NeighborSampler
from manyhop_dgl.samplers.plan import CPU, Arguments, Pad, Plan
from manyhop_dgl.samplers.tensors import BlockTensors, EdgeTensors
from manyhop_dgl.typing import GraphLike

if TYPE_CHECKING:
    from manyhop.loading.gpu.runtime import GPURuntime
    from manyhop_dgl.loader.padding import Padding


def contents_of(batch: object, indices: object = None) -> dict[str, int]:
    """Return seeds, nodes and edges of a batch, without padding, for ``Stats.count``.

    Args:
        batch: a sample, or the result of a sampler.
        indices: seeds of the latter.
    """
    if isinstance(batch, EdgeTensors):
        if batch.sample.padding is not None:
            return _without_padding(batch, batch.sample.padding)
        return contents_of(batch.sample) | {"seeds": _total(batch.ids)}
    if isinstance(batch, BlockTensors):
        if batch.padding is not None:
            return _without_padding(batch, batch.padding)
        hops = batch.hops
        return {
            "seeds": sum(hops.num_nodes[0].values()),
            "nodes": sum(hops.num_nodes[-1].values()),
            "edges": sum([sum(of_hops) for of_hops in hops.num_edges.values()]),
        }
    blocks = batch[-1] if isinstance(batch, tuple) and batch and isinstance(batch[-1], list) else batch
    graphs = all_in_nested(dgl.DGLGraph, blocks)
    given = batch[0] if isinstance(batch, tuple) and batch and not all_in_nested(dgl.DGLGraph, batch[0]) else None
    return {
        "seeds": _total(indices),
        "nodes": sum(g.num_src_nodes() for g in graphs[:1]) if given is None else _total(given),
        "edges": sum(g.num_edges() for g in graphs),
    }


def _without_padding(batch: BlockTensors | EdgeTensors, padded: Padded) -> dict[str, int]:
    seeds = sum(hops[0] for hops in padded.counts.nodes.values())
    if isinstance(batch, EdgeTensors):
        seeds = sum((batch.num_edges or {}).values())
    nodes, edges = (sum(map(sum, by_type.values())) for by_type in (padded.counts.nodes, padded.counts.edges))
    return {"seeds": seeds, "nodes": nodes, "edges": edges, "padded": 1, "fit": int(padded.grown == 0)}


def _total(values: object) -> int:
    """Return entries of a tensor, or of all tensors in a dictionary; 0 for other objects."""
    if isinstance(values, Mapping):
        return sum(map(_total, values.values()))
    return values.shape[0] if isinstance(values, Tensor) else 0


Sample: TypeAlias = BlockTensors | EdgeTensors
Finish: TypeAlias = Callable[[], list[Sample]]
"""Returns the samples of the begun batches; waits for their sizes."""


class LoaderView(Protocol):
    """A loader: the user's arguments, which may be replaced between epochs."""

    graph: OwnGraph | dgl.DGLGraph
    graph_sampler: BlockSampler
    device: torch.device
    seed_parts: int | None
    dataset: Seeds | GivenBatches
    output: str
    use_prefetch_thread: bool | None
    worker_init_fn: WorkerInit


class GPUSampling:
    """Samples on one GPU, or on the CPU if the sampler does not support GPUs.

    Args:
        sampler: of nodes, one of this package.
        topology: the sampled topology.
        device: the GPU.
        where: the memory that the GPU reads edges from.
    """

    def __init__(self, sampler: EngineSampler, topology: Topology, device: torch.device, where: Place) -> None:
        self.device = device
        self._sampler, self._where, self._topology = sampler, where, topology
        self._plan: Plan | None = None
        arguments = sampler.arguments()
        self._stays = where == "distributed" or (where == "sharded" and not on_cpu_only(arguments))
        if self._stays:  # all ranks built it together, and do not rebuild it
            self._plan = Plan(topology, arguments, device, where)

    def plan(self, topology: Topology, arguments: Arguments) -> Plan:
        """Return the engine of the current topology and arguments of the sampler.

        Raises:
            GraphError: it has changed, but is spread over multiple GPUs.
        """
        if self._plan is not None and self._stays:
            if topology is not self._topology:
                raise GraphError(
                    "Expected unchanged edges and weights, since they are spread over multiple GPUs, but they have "
                    "changed. Create a new loader on all ranks."
                )
            return self._plan
        device = CPU if on_cpu_only(arguments) else self.device
        plan = arguments.plan(topology, device, self._where)
        if plan is not self._plan:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # its tables are complete, for the streams of other threads
            self._plan = plan
        return plan


def nodes_of_seeds(seeds: Seeds, graph: GraphLike, sampler: BlockSampler) -> list[tuple[Tensor, int]]:
    """Return for each type of seeds the node of each seed, of a seed edge its source, and the number of such nodes.

    Raises:
        InputError: a sampler of the user, whose indices may mean anything.
    """
    if not isinstance(sampler_of_nodes(sampler), EngineSampler):
        raise InputError(
            f"Expected one of manyhop's samplers with seed_parts, got a {type(sampler).__name__}. Leave seed_parts out."
        )
    by_type = seeds.indices if isinstance(seeds.indices, dict) else {None: seeds.indices}
    if sampler_of_nodes(sampler) is sampler:
        return [(ids, graph.num_nodes(kind)) for kind, ids in by_type.items()]
    found = []
    for kind, ids in by_type.items():
        source_type = None if kind is None else graph.to_canonical_etype(kind)[0]
        found.append((graph.find_edges(ids, etype=kind)[0], graph.num_nodes(source_type)))
    return found


class Source:
    """The ``SeedSource`` of a loader."""

    has_times = True

    def __init__(
        self,
        loader: LoaderView,
        gpu: GPURuntime | None,
        stats: Stats,
        padding: Padding | None,
        *,
        on_gpu: bool,
        as_tensors: bool,
    ) -> None:
        self._loader, self._gpu, self._stats, self._padding = loader, gpu, stats, padding
        self._on_gpu, self._as_tensors = on_gpu, as_tensors
        self._sampler = sampler_of_nodes(loader.graph_sampler)
        self._edges = None if self._sampler is loader.graph_sampler else loader.graph_sampler

    @property
    def graph(self) -> Graph | None:
        """The edges that a sampler of this package reads."""
        if not self._on_gpu:
            return None
        own = self._loader.graph
        topology = self._sampler.arguments().topology(own)
        if isinstance(own, OwnGraph) and own.topology_place is not None:
            own.topology_place.claim(topology.graph, topology)
        graph: Graph = topology.graph
        return graph

    @property
    def of_nodes(self) -> bool:
        """Whether seeds are nodes."""
        return self._edges is None

    def inputs(self, positions: Sequence[Tensor]) -> list[Indices]:
        """Return the seeds of multiple batches."""
        seeds = self._loader.dataset
        assert isinstance(seeds, Seeds)
        return [seeds.at(index) for index in positions]

    def place(self, device: torch.device, where: Place) -> GPUSampling:
        """Return the sampler of a GPU."""
        topology = self._sampler.arguments().topology(self._loader.graph)
        return GPUSampling(self._sampler, topology, device, where)

    def engine(self, sampling: GPUSampling) -> Engine:
        """Return the current engine of the sampler."""
        arguments = self._sampler.arguments()
        return sampling.plan(arguments.topology(self._loader.graph), arguments).engine

    def lookup(self, device: torch.device) -> GPUSeeds | None:
        """Return the seeds on the GPU; ``None`` where the host must look them up: seed edges, and multiple types."""
        seeds = self._loader.dataset
        if not self.of_nodes or not isinstance(seeds, Seeds) or len(seeds.types) != 1:
            return None
        if not isinstance(self._sampler, NeighborSampler):
            return None
        topology = self._sampler.arguments().topology(self._loader.graph)
        (node_type,) = read_seeds(seeds.indices, topology)[1]
        ids = seeds.indices[node_type] if isinstance(seeds.indices, dict) else seeds.indices
        return GPUSeeds(node_type, ids, device) if seeds.num_seeds <= MOST else None

    def begin(self, sampling: GPUSampling, inputs: Sequence[Indices], keys: Sequence[BatchKey]) -> Finish:
        """Begin to sample around the seeds of multiple batches."""
        arguments = self._sampler.arguments()
        topology = arguments.topology(self._loader.graph)
        plan = sampling.plan(topology, arguments)
        if isinstance(inputs, SeedsOfBatches):
            from manyhop.sampling.gpu.launch.seeds import SeedGroup

            group = plan.begin(SeedGroup(keys, inputs.node_type, inputs.ids, inputs.sizes))
            return lambda: list(group(self._pad))
        batches = [self._request(topology, *one, self._loader.device) for one in zip(inputs, keys, strict=True)]
        pending = plan.begin([request for request, _ in batches])

        def finish() -> list[Sample]:
            samples = pending(self._pad)
            if plan.device != sampling.device:
                samples = [sample.to(sampling.device) for sample in samples]
            return [dress(sample) for (_, dress), sample in zip(batches, samples, strict=True)]

        return finish

    @ranged("sample")
    def sample_around(self, indices: Any) -> Any:
        """Sample around some indices on the CPU."""
        start = time.perf_counter()
        loader, sampler = self._loader, self._loader.graph_sampler
        if self._as_tensors:
            arguments = self._sampler.arguments()
            topology = arguments.topology(loader.graph)
            request, dress = self._request(topology, indices, sampler.next_key(), CPU)
            batch = dress(arguments.plan(topology, CPU).sample(request, self._pad))
        else:
            batch = sampler.sample(loader.graph, indices)
        if (rank_batch := current_batch()) is not None:
            self._stats.record(rank_batch.batch, "sample", start, time.perf_counter())
            rank_batch.contents.update(contents_of(batch, indices))
        return batch

    @property
    def _pad(self) -> Pad | None:
        return None if self._padding is None else self._padding.pad

    def _request(
        self, topology: Topology, seeds: Indices, key: BatchKey, device: torch.device
    ) -> tuple[NodeRequest, Callable[[BlockTensors], Sample]]:
        """Return what is sampled for some seeds, and a function that makes their batch of it."""
        if self._edges is None:
            return NodeRequest(key=key, seeds=read_seeds(seeds, topology)[1]), lambda tensors: tensors
        graph, padding = self._loader.graph, self._padding
        edges, pairs, nodes, exclude = self._edges.around(graph, seeds, key)

        def dress(tensors: BlockTensors) -> Sample:
            batch = as_tensors(graph, edges, pairs, tensors, device)
            return batch if padding is None else padding.pad_seed_edges(batch)

        around = read_seeds(as_seed_nodes(nodes), topology)[1]
        return NodeRequest(key=key, seeds=around, exclude=read_exclude(exclude, topology)), dress

    def sample(self, positions: Any) -> Any:
        """Sample around the seeds at some positions, or around the indices of a batch."""
        gpu, seeds = self._gpu, self._loader.dataset
        if gpu is not None and gpu.sampling is not None:
            return self.begin(gpu.sampling, self.inputs([positions]), [next_key()])()[0]
        return self.sample_around(seeds.at(positions) if isinstance(seeds, Seeds) else positions)


def on_cpu_only(arguments: Arguments) -> bool:
    """Return whether a sampler needs rounds, as LABOR with importance sampling on the CPU."""
    return getattr(arguments, "importance_sampling", 0) != 0
