"""The seeds of a loader: its ``indices``, by position, and samples around them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import dgl
import numpy as np
import torch
from dgl.dataloading import BlockSampler
from torch import Tensor
from torch.utils.data import IterableDataset

from manyhop.arguments import as_ids
from manyhop.errors import GraphError, InputError
from manyhop.graph import Graph, NodeType
from manyhop.loading import next_key
from manyhop.loading.pipeline import BatchPlan
from manyhop.memory.places import Place
from manyhop.sampling import BatchKey, NodeRequest
from manyhop.sampling.contract import Engine
from manyhop.system.arrays import from_array, is_map_style, version_of
from manyhop.system.ranges import ranged
from manyhop_dgl.graph.graph import Graph as OwnGraph
from manyhop_dgl.graph.topology import Topology
from manyhop_dgl.loader.cores import WorkerInit
from manyhop_dgl.samplers.arguments import read_exclude, read_seeds
from manyhop_dgl.samplers.edges import as_seed_nodes, as_tensors, sampler_of_nodes
from manyhop_dgl.samplers.neighbor import EngineSampler, NeighborSampler
from manyhop_dgl.samplers.plan import CPU, Arguments, Pad, Plan
from manyhop_dgl.samplers.tensors import BlockTensors, Sample
from manyhop_dgl.typing import GraphLike

if TYPE_CHECKING:
    from manyhop.loading.gpu.runtime import GPURuntime
    from manyhop_dgl.loader.padding import Padding

Indices: TypeAlias = Tensor | dict[Any, Tensor]
Finish: TypeAlias = Callable[[], list[Sample]]
"""Returns the samples of the begun batches; waits for their sizes."""


class Seeds(IterableDataset[Indices]):
    """Indices that a loader cuts into batches: a tensor, or one tensor for each type.

    Args:
        indices: ``[num_seeds, ...]``, or type -> the same.
    """

    def __init__(self, indices: Indices) -> None:
        self.indices = indices
        tensors = list(indices.values()) if isinstance(indices, dict) else [indices]
        self.types = [None] if isinstance(indices, Tensor) else list(indices)
        """The types of seeds; ``None`` if they have none."""
        self._ends = torch.tensor([tensor.shape[0] for tensor in tensors], dtype=torch.int64).cumsum(0)
        self.num_seeds = int(self._ends[-1]) if tensors else 0

    def __iter__(self) -> Iterator[Indices]:
        """The seeds one by one, in their own order."""
        return (self.at(torch.tensor([i])) for i in range(self.num_seeds))

    def on_host(self) -> Seeds:
        """Return the seeds in host memory."""
        if isinstance(self.indices, Tensor):
            return Seeds(self.indices.cpu()) if self.indices.is_cuda else self
        there = any(tensor.is_cuda for tensor in self.indices.values())
        return Seeds({kind: tensor.cpu() for kind, tensor in self.indices.items()}) if there else self

    def at(self, positions: Tensor) -> Indices:
        """Return the indices at positions ``[count] int64``; with multiple types, by type, if any occur."""
        if isinstance(self.indices, Tensor):
            return self.indices[positions]
        if len(self.indices) == 1:
            return {kind: tensor[positions] for kind, tensor in self.indices.items()}
        place = torch.searchsorted(self._ends, positions, right=True)
        found = {}
        for i, (kind, tensor) in enumerate(self.indices.items()):
            mine = positions[place == i]
            if mine.numel():
                found[kind] = tensor[mine - (self._ends[i] - tensor.shape[0])]
        return found


class GivenBatches(IterableDataset[Any]):
    """Indices by batch.

    Args:
        dataset: an iterable of the indices of batches, or something with ``__len__`` and ``__getitem__``.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        """The indices of one batch after the other."""
        dataset = self.dataset
        if isinstance(dataset, Iterable):
            return iter(dataset)
        return (dataset[i] for i in range(len(dataset)))

    def number(self) -> int | None:
        """Return how many batches there are; ``None``: not known."""
        try:
            return len(self.dataset)
        except (TypeError, NotImplementedError):
            return None


def as_seeds(indices: object) -> Seeds | GivenBatches:
    """Convert the argument ``indices``.

    Raises:
        InputError: an object without indices.
    """
    if isinstance(indices, Mapping):
        return Seeds({kind: as_ids(f"indices[{kind!r}]", value) for kind, value in indices.items()})
    if isinstance(indices, Tensor | np.ndarray):
        return Seeds(as_ids("indices", indices))
    if is_map_style(indices) and not _has_ids(indices):
        return GivenBatches(indices)
    try:
        tensor = from_array(indices)
    except (TypeError, ValueError, RuntimeError):
        tensor = None
    if tensor is not None:
        return Seeds(as_ids("indices", tensor))
    if isinstance(indices, Iterable) and not isinstance(indices, str | bytes):
        return GivenBatches(indices)
    raise InputError(
        "Expected indices to be a tensor, a dictionary of tensors by type, or a dataset of the indices of batches, got "
        f"a {type(indices).__name__}."
    )


def _has_ids(dataset: Any) -> bool:
    """Return whether the items of a map-style dataset are single ids, by the first one."""
    return len(dataset) > 0 and torch.as_tensor(dataset[0]).dim() == 0


MOST = 8 << 20
"""Maximum number of seeds on the GPU; more are looked up on the host."""


class GPUSeeds:
    """Seed nodes of one type.

    Args:
        node_type: their type.
        ids: ``[num_seeds]`` integers in host memory. Changes in place are followed.
        device: the GPU.
    """

    def __init__(self, node_type: NodeType, ids: Tensor, device: torch.device) -> None:
        from manyhop.loading.pipeline.gpu import GPUPositions  # imports triton

        self._node_type, self._ids, self._device = node_type, ids, device
        self._positions = GPUPositions(device)
        self._copy()

    def of(self, plan: BatchPlan, epoch: int, batches: Sequence[int]) -> SeedsOfBatches:
        """Return the seeds of some batches of an epoch, enqueued on the current stream."""
        if version_of(self._ids) != self._version:
            self._copy()
        (_, ids), sizes = self._positions(plan, epoch, batches, [self._there])
        return SeedsOfBatches(self._node_type, ids, sizes)

    def _copy(self) -> None:
        self._version = version_of(self._ids)
        self._there = self._ids.to(self._device, torch.int64, copy=True).contiguous()


class SeedsOfBatches(Sequence["SeedsOfBatches"]):
    """The seeds of some batches, one behind the other on the GPU."""

    def __init__(self, node_type: NodeType, ids: Tensor, sizes: list[int]) -> None:
        self.node_type, self.ids, self.sizes = node_type, ids, sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, i: int | slice) -> SeedsOfBatches:
        first, end, _ = (slice(i, i + 1) if isinstance(i, int) else i).indices(len(self))
        ends = list(accumulate(self.sizes, initial=0))
        return SeedsOfBatches(self.node_type, self.ids[ends[first] : ends[max(first, end)]], self.sizes[first:end])


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
        plan = arguments.plan(topology, device, self._where, owner=self._sampler.plan_owner)
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
        padding: Padding | None,
        *,
        on_gpu: bool,
        as_tensors: bool,
    ) -> None:
        self._loader, self._gpu, self._padding = loader, gpu, padding
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

    def inputs(self, positions: Sequence[Any]) -> list[Any]:
        """Return the seeds of multiple batches; the dataset's batches as they are."""
        seeds = self._loader.dataset
        return [seeds.at(index) if isinstance(seeds, Seeds) else index for index in positions]

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

    def sample(self, positions: Any) -> Any:
        """Sample around the seeds at some positions, or around the indices of a batch."""
        return self.sample_around(*self.inputs([positions]))

    @ranged("sample")
    def sample_around(self, indices: Any) -> Any:
        """Sample around some indices."""
        gpu, loader = self._gpu, self._loader
        if gpu is not None and gpu.sampling is not None:
            return self.begin(gpu.sampling, [indices], [next_key()])()[0]
        if not self._as_tensors:
            return loader.graph_sampler.sample(loader.graph, indices)
        arguments = self._sampler.arguments()
        topology = arguments.topology(loader.graph)
        request, dress = self._request(topology, indices, next_key(), CPU)
        plan = arguments.plan(topology, CPU, owner=self._sampler.plan_owner)
        return dress(plan.sample(request, self._pad))

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


def on_cpu_only(arguments: Arguments) -> bool:
    """Return whether a sampler needs rounds, as LABOR with importance sampling on the CPU."""
    return getattr(arguments, "importance_sampling", 0) != 0
