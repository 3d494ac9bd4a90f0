"""A sampler's work on one graph and one device: the engine beneath, from seeds to blocks of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.arguments import flag
from manyhop.errors import InputError
from manyhop.features import BufferPool
from manyhop.graph import NodeType, PlacedGraph
from manyhop.loading import batch_key
from manyhop.loading.pipeline import Padded
from manyhop.memory.places import Place
from manyhop.sampling import (
    BatchKey,
    LaborSpec,
    NeighborSpec,
    NodeRequest,
    SampledSubgraph,
)
from manyhop.sampling.cpu.workspace import Empty, empty
from manyhop.sampling.engines import engine_for, placed_engine
from manyhop_dgl.graph.topology import EdgeDir, Topology, topology_of
from manyhop_dgl.samplers.arguments import (
    check_name,
    check_names,
    freeze_fanouts,
    next_key,
    read_exclude,
    read_fanouts,
    read_seeds,
    same_device,
)
from manyhop_dgl.samplers.features import with_rows
from manyhop_dgl.samplers.tensors import BlockTensors, Hops
from manyhop_dgl.typing import Fanouts, GraphLike, LayerFanouts, Names, Nodes

if TYPE_CHECKING:
    from manyhop.sampling.gpu.launch.seeds import SeedGroup

T = TypeVar("T")
Pad = Callable[[Sequence[SampledSubgraph]], list[Padded]]
"""Pads samples to fixed sizes."""


def cut_all(
    samples: Sequence[SampledSubgraph],
    *,
    dtype: torch.dtype = torch.int64,
    empty: Empty = empty,
    pad: Pad | None = None,
) -> list[BlockTensors]:
    """Cut samples on one device, whose hops expand all nodes, into blocks, which are views.

    Args:
        samples: of a spec with ``expand="all"``.
        dtype: of all ids: int64, or int32 as in a graph whose ``idtype`` it is.
        empty: makes the tensors of the columns, on a CPU.
        pad: pads samples to fixed sizes first; ``None``: they are unchanged.
    """
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
        from manyhop.sampling.cpu.kernels.hop import fill_indptr

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


class PlanOwner:
    """What plans are kept for: a sampler, whose copies in other processes make their own."""


_CALLS = PlanOwner()
"""Of all calls without a sampler."""


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

    def plan(
        self, topology: Topology, device: torch.device, where: Place = "device", *, owner: PlanOwner = _CALLS
    ) -> Plan:
        """Return the engine for a topology, which a GPU reads from ``where``; kept as long as topology and owner."""
        return topology.once(owner, (self, device, where), lambda: Plan(topology, self, device, where))

    def request(
        self,
        g: GraphLike,
        seed_nodes: object,
        exclude_eids: object,
        key: Callable[[], BatchKey],
        device: torch.device,
        owner: PlanOwner = _CALLS,
    ) -> tuple[Nodes, NodeRequest, Plan]:
        """Return the seeds of a user with the graph's dtype, and what samples around them. Wrong ones use up no key."""
        topology = self.topology(g)
        output_nodes, seeds = read_seeds(seed_nodes, topology)
        exclude = read_exclude(exclude_eids, topology)
        request = NodeRequest(key=key(), seeds=seeds, exclude=exclude)
        return output_nodes, request, self.plan(topology, device, owner=owner)


class Plan:
    """Samples blocks of one graph on one device. Safe to call from multiple threads.

    Raises:
        InputError: fanouts that do not fit the graph, or a device that cannot sample so.
    """

    def __init__(self, topology: Topology, arguments: Arguments, device: torch.device, where: Place) -> None:
        self.device = device
        self.index_dtype = topology.index_dtype
        self._pool = BufferPool()
        spec = arguments.spec(topology)
        arguments.check(device)
        self._placed: PlacedGraph | None = None
        if device.type == "cpu" and where != "distributed":  # there, tests have a CPU stand for a GPU
            self.engine = engine_for(topology.graph, spec, empty=self._pool.empty)
        else:
            self._placed = PlacedGraph.of(topology.graph, device, where)
            self.engine = placed_engine(self._placed, spec)

    def sample(self, request: NodeRequest, pad: Pad | None = None) -> BlockTensors:
        """Sample around seeds, padded by ``pad``; ids are of the topology, in host memory or on the device.

        Raises:
            InputError: seeds or edges that the graph does not have, or on another device.
            CapacityError: the batch does not fit in memory.
        """
        ids = (*request.seeds.values(), *(request.exclude or {}).values())
        same_device(ids, self.device, "seeds and edges to exclude")
        sample = self.engine.sample(request)
        return cut_all([sample], dtype=self.index_dtype, empty=self._pool.empty, pad=pad)[0]

    def begin(self, requests: Sequence[NodeRequest] | SeedGroup) -> Callable[[Pad | None], list[BlockTensors]]:
        """Enqueue on a GPU the sampling of batches, on the current stream.

        Returns:
            A function that waits until the sizes of the samples are known, and enqueues the kernels that write them,
            padded by its argument.
        """
        pending = self.engine.begin(requests)
        return lambda pad: cut_all(pending.finish(), dtype=self.index_dtype, pad=pad)


def sample_tensors(
    graph: GraphLike,
    seed_nodes: object,
    fanouts: Fanouts,
    *,
    edge_dir: EdgeDir = "in",
    prob: str | None = None,
    mask: str | None = None,
    replace: bool = False,
    exclude_eids: object = None,
    key: tuple[int, int, int] | None = None,
    device: torch.device | str | None = None,
    node_features: Names = None,
    edge_features: Names = None,
) -> BlockTensors:
    """Sample blocks as tensors. It needs no build of DGL for the device, nor DGL at all for a ``manyhop_dgl.Graph``.

    The sample is that of :class:`NeighborSampler` for the same key, on the CPU and on a GPU. On a GPU the edges are
    read from its memory, to which they are copied once per graph.

    Args:
        graph: a ``DGLGraph`` on the CPU or a ``manyhop_dgl.Graph``.
        seed_nodes: ``[num_seeds]`` ids, or a dict, node type -> ids; on the CPU or on the device.
        fanouts: as for :class:`NeighborSampler`, like the following four.
        edge_dir: ``"in"`` or ``"out"``.
        prob: name of edge data to pick by.
        mask: name of boolean edge data: edges that may be sampled.
        replace: sample with replacement.
        exclude_eids: edge ids, or a dict, edge type -> edge ids: they are removed from the picks.
        key: ``(seed, epoch, batch)``: determines the sample. ``None``: in a loader's iteration, the key of the
            batch, otherwise drawn.
        device: where to sample and to gather; ``None``: on the CPU.
        node_features: names of node data to gather for the input nodes (of every node type that has it), or a dict,
            node type -> names.
        edge_features: names of edge data to gather for the edges of all blocks, or a dict, edge type -> names.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
        GraphError: data for ``prob`` or ``mask`` that is missing or wrong.
        FeatureError: features that the graph does not have.
        CapacityError: the batch does not fit in memory.
    """
    check_name(prob, "prob")
    check_name(mask, "mask")
    arguments = Arguments(freeze_fanouts(fanouts), edge_dir, prob, mask, flag("replace", replace))
    check_names(node_features, "node_features")
    check_names(edge_features, "edge_features")
    own = next_key if key is None else partial(batch_key, key)
    _, request, plan = arguments.request(graph, seed_nodes, exclude_eids, own, as_device(device))
    return with_rows(plan.sample(request), graph, node_features, edge_features)
