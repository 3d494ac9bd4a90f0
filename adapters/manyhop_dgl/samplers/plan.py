"""A sampler's work on one graph and one device: the engine beneath, from seeds to blocks of tensors."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.features import BufferPool
from manyhop.graph import EdgeType, NodeType, PlacedGraph
from manyhop.loading.pipeline import Padded
from manyhop.memory.places import Place
from manyhop.sampling import (
    BatchKey,
    LaborSpec,
    NeighborSpec,
    NodeRequest,
    SampledSubgraph,
)
from manyhop.sampling.contract import Pending
from manyhop.sampling.cpu.workspace import Empty, empty
from manyhop.sampling.engines import engine_for, placed_engine
from manyhop.system.threads import in_forked_children
from manyhop_dgl.graph.readers import EdgeDir
from manyhop_dgl.graph.topology import Topology, topology_of
from manyhop_dgl.samplers.arguments import read_fanouts
from manyhop_dgl.samplers.tensors import BlockTensors, Hops
from manyhop_dgl.typing import GraphLike, LayerFanouts

T = TypeVar("T")
Pad = Callable[[Sequence[SampledSubgraph]], list[Padded]]
"""Pads samples to fixed sizes."""


def cut(
    sample: SampledSubgraph, *, dtype: torch.dtype = torch.int64, empty: Empty = empty, pad: Pad | None = None
) -> BlockTensors:
    """Cut a sample whose hops expand all nodes into blocks, which are views.

    Args:
        sample: of a spec with ``expand="all"``.
        dtype: of all ids: int64, or int32 as in a graph whose ``idtype`` it is.
        empty: makes the tensors of the columns, on a CPU.
        pad: pads samples to fixed sizes first; ``None``: they are unchanged.
    """
    return cut_all([sample], dtype=dtype, empty=empty, pad=pad)[0]


def cut_all(
    samples: Sequence[SampledSubgraph],
    *,
    dtype: torch.dtype = torch.int64,
    empty: Empty = empty,
    pad: Pad | None = None,
) -> list[BlockTensors]:
    """Cut multiple samples on one device, with as many operations as for one."""
    if pad is not None:
        padded = pad(samples)
        blocks = cut_all([one.sample for one in padded], dtype=dtype, empty=empty)
        return [_with_masks(*both) for both in zip(blocks, padded, strict=True)]
    num_nodes = [nodes_by_hop(sample) for sample in samples]
    columns, sizes = _columns(samples, num_nodes, dtype, empty)
    parts = columns.unsafe_split_with_sizes(sizes)  # as in Hops.cut
    return [_cut(*one, dtype) for one in zip(samples, num_nodes, parts, strict=True)]


def _with_masks(tensors: BlockTensors, padded: Padded) -> BlockTensors:
    hops = replace(tensors.hops, masks=padded.edge_mask)
    return replace(tensors, hops=hops, masks=padded.node_mask, padding=padded)


def nodes_by_hop(sample: SampledSubgraph) -> list[dict[NodeType, int]]:
    """Return ``[num_hops + 1]``: the seeds, then the nodes up to each hop."""
    added = sample.num_sampled_nodes
    assert added is not None
    if len(added) == 1:  # in a third of the time, which matters for small batches
        ((node_type, counts),) = added.items()
        return [{node_type: n} for n in accumulate(counts)]
    return [dict(zip(added, ends, strict=True)) for ends in zip(*map(accumulate, added.values()), strict=True)]


def _cut(
    sample: SampledSubgraph, num_nodes: list[dict[NodeType, int]], columns: Tensor, dtype: torch.dtype
) -> BlockTensors:
    node, row = sample.node, sample.row
    ids: Any = sample.edge_id  # of all types: no reverses of edges were added
    if dtype != torch.int64:
        node, row, ids = _cast(node, dtype), _cast(row, dtype), _cast(ids, dtype)
    assert sample.num_sampled_edges is not None
    hops = Hops(
        num_nodes=num_nodes,
        num_edges=sample.num_sampled_edges,
        columns=columns,
        sources=row,
        ids=ids,
        weights=sample.edge_weight,
    )
    return BlockTensors(node=node, num_seeds=num_nodes[0], hops=hops)


def _cast(tensors: Mapping[T, Tensor], dtype: torch.dtype) -> dict[T, Tensor]:
    return {t: tensor.to(dtype) for t, tensor in tensors.items()}


def columns_of(samples: Sequence[SampledSubgraph], num_nodes: Sequence[list[dict[NodeType, int]]]) -> Sequence[Tensor]:
    """Find where each node's edges begin in a hop, for multiple samples on one device by one kernel.

    Args:
        samples: of a spec with ``expand="all"``.
        num_nodes: of each, by :func:`nodes_by_hop`.

    Returns:
        Per sample, edge type and hop: ``[num_dst + 1] int64``.
    """
    memory, _ = _columns(samples, num_nodes, torch.int64, empty)
    edges = [sample.num_sampled_edges or {} for sample in samples]
    sizes = [ends[t[2]] + 1 for of, nodes in zip(edges, num_nodes, strict=True) for t in of for ends in nodes[:-1]]
    return memory.unsafe_split_with_sizes(sizes)


def _columns(
    samples: Sequence[SampledSubgraph], num_nodes: Sequence[list[dict[NodeType, int]]], dtype: torch.dtype, empty: Empty
) -> tuple[Tensor, list[int]]:
    """Return the results of :func:`columns_of` one behind the other, and how many entries each sample has of them."""
    device = next(iter(samples[0].node.values())).device
    sizes: list[int] = []
    flat: list[int] = []
    offset = 0
    for sample, nodes in zip(samples, num_nodes, strict=True):
        assert sample.num_sampled_edges is not None
        before = offset
        for t, counts in sample.num_sampled_edges.items():
            begin, kind = sample.col[t].data_ptr(), t[2]
            for count, ends in zip(counts, nodes, strict=False):
                num_dst = ends[kind]
                flat += (begin, count, num_dst, 8 * offset)
                begin += 8 * count
                offset += num_dst + 1
        sizes.append(offset - before)
    on_cpu = device.type == "cpu"
    memory = empty((offset,), torch.int64) if on_cpu else torch.empty(offset, dtype=torch.int64, device=device)
    table = np.array(flat, np.int64).reshape(-1, 4)
    table[:, 3] += memory.data_ptr()
    _fill(table, device)
    return memory if memory.dtype == dtype else memory.to(dtype), sizes


def _fill(table: npt.NDArray[np.int64], device: torch.device) -> None:
    if device.type == "cpu":
        from manyhop.graph.column_kernels import fill_indptr

        fill_indptr(table)
    else:
        from manyhop.sampling.gpu.lookup import fill

        fill(table, device)


CPU = torch.device("cpu")


def parse_device(name: str, device: torch.device | str | None) -> torch.device:
    """Return the CPU or a GPU, which may be missing; ``None``: the CPU.

    Raises:
        InputError: anything else.
    """
    try:
        found = CPU if device is None else torch.device(device)
    except (RuntimeError, TypeError):
        found = torch.device("meta")
    if found.type not in ("cpu", "cuda"):
        raise InputError(f"Expected {name} to be 'cuda', 'cuda:0', 'cpu' or None, got {device!r}. Pass one of them.")
    return found


def as_device(device: torch.device | str | None) -> torch.device:
    """Resolve a device; ``None``: the CPU; a GPU without a number: the current one.

    Raises:
        InputError: no device, or a missing GPU.
    """
    found = parse_device("device", device)
    if found.type == "cpu":
        return CPU
    if not (found.index or 0) < torch.cuda.device_count():
        raise InputError(
            f"Expected an available device, got {str(found)!r}, and {torch.cuda.device_count()} CUDA devices are "
            "found. device='cpu' does the same on the CPU."
        )
    return torch.device("cuda", torch.cuda.current_device()) if found.index is None else found


@dataclass(frozen=True)
class Arguments:
    """How neighbours are sampled, in the user's terms."""

    fanouts: tuple[LayerFanouts, ...]
    """Per layer, the input layer first: an integer, or ``((edge type, integer), ...)``."""

    edge_dir: EdgeDir = "in"
    prob: str | None = None
    mask: str | None = None
    replace: bool = False

    def topology(self, g: GraphLike) -> Topology:
        """Return the tables of a graph that they need."""
        return topology_of(g, edge_dir=self.edge_dir, prob=self.prob, mask=self.mask)

    def spec(self, topology: Topology) -> NeighborSpec | LaborSpec:
        """Return how the engine samples them."""
        return NeighborSpec(
            fanouts=read_fanouts(self.fanouts, topology),
            replace=self.replace,
            weighted=topology.weighted,
            expand="all",
        )

    def check(self, device: torch.device) -> None:
        """Raise InputError if a device does not support the sampling."""


class Plan:
    """Samples blocks of one graph on one device. Safe to call from multiple threads.

    Raises:
        InputError: fanouts that do not fit the graph, or a device that cannot sample so.
    """

    def __init__(self, topology: Topology, arguments: Arguments, device: torch.device, where: Place) -> None:
        self.device = device
        self.index_dtype = topology.index_dtype
        self._pool = BufferPool()
        self._spec = arguments.spec(topology)
        arguments.check(device)
        self._placed: PlacedGraph | None = None
        if device.type == "cpu" and where != "distributed":  # there, tests have a CPU stand for a GPU
            self.engine = engine_for(topology.graph, self._spec, empty=self._pool.empty)
        else:
            self._placed = PlacedGraph.of(topology.graph, device, where)
            self.engine = placed_engine(self._placed, self._spec)

    def sample(
        self,
        seeds: Mapping[NodeType, Tensor],
        key: BatchKey,
        exclude: Mapping[EdgeType, Tensor] | None = None,
        *,
        pad: Pad | None = None,
    ) -> BlockTensors:
        """Sample around seeds.

        Args:
            seeds: node type -> ``[num_seeds] int64``; duplicates are allowed.
            key: names the batch.
            exclude: edge type (as the topology has it) -> ``[n] int64`` edge ids that are left out.
            pad: pads the sample; ``None``: it is unchanged.

        Raises:
            InputError: seeds or edges that the graph does not have.
            CapacityError: the batch does not fit in memory.
        """
        sample = self.engine.sample(NodeRequest(key=key, seeds=seeds, exclude=exclude))
        return cut(sample, dtype=self.index_dtype, empty=self._pool.empty, pad=pad)

    def begin(
        self, batches: Sequence[tuple[Mapping[NodeType, Tensor], BatchKey, Mapping[EdgeType, Tensor] | None]]
    ) -> PendingBlocks:
        """Enqueue on a GPU the sampling of batches, ``(seeds, key, exclude)`` each, on the current stream."""
        requests = [NodeRequest(key=key, seeds=seeds, exclude=exclude) for seeds, key, exclude in batches]
        return PendingBlocks(self, self.engine.begin(requests))

    def begin_group(
        self, node_type: NodeType, seeds: Tensor, sizes: Sequence[int], keys: Sequence[BatchKey]
    ) -> PendingBlocks:
        """Begin to sample batches whose seeds are on the GPU.

        Args:
            node_type: type of the seeds.
            seeds: ``[n] int64`` on the GPU, batch by batch.
            sizes: number of seeds of each batch.
            keys: of the batches.
        """
        from manyhop.sampling.gpu.launch.seeds import SeedGroup

        return PendingBlocks(self, self.engine.begin(SeedGroup(keys, node_type, seeds, sizes)))


@dataclass(frozen=True)
class PendingBlocks:
    """Batches whose sampling on a GPU is enqueued."""

    plan: Plan
    launch: Pending

    def finish(self, pad: Pad | None = None) -> list[BlockTensors]:
        """Wait until the sizes of the samples are known, and enqueue the kernels that write them, padded by ``pad``."""
        return cut_all(self.launch.finish(), dtype=self.plan.index_dtype, pad=pad)


_lock = threading.Lock()


def _renew_lock() -> None:
    """Replace the lock in a forked process, which has no thread that could release it."""
    global _lock
    _lock = threading.Lock()


in_forked_children(_renew_lock)


class Plans:
    """The plans of one sampler, or of all calls: kept as long as the topology they are of."""

    def __init__(self) -> None:
        self._by_topology: dict[
            int, tuple[weakref.ref[Topology], dict[tuple[Arguments, torch.device, Place], Plan]]
        ] = {}

    def of(self, topology: Topology, arguments: Arguments, device: torch.device, where: Place = "device") -> Plan:
        """Return the plan for a topology, which a GPU reads from its own memory, or the host's (``where="pinned"``).

        Built at the first access.
        """
        found = self._by_topology.get(id(topology))
        plan = None if found is None else found[1].get((arguments, device, where))
        if plan is not None:
            return plan
        with _lock:
            if id(topology) not in self._by_topology:
                self._by_topology[id(topology)] = weakref.ref(topology, self._forget(id(topology))), {}
            plans = self._by_topology[id(topology)][1]
            key = arguments, device, where
            if key not in plans:
                plans[key] = Plan(topology, arguments, device, where)
            return plans[key]

    def _forget(self, key: int) -> Callable[[object], object]:
        plans = self._by_topology
        return lambda _: plans.pop(key, None)

    def __getstate__(self) -> dict[str, object]:
        return {}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__()  # type: ignore[misc]  # plans are made anew in each process
