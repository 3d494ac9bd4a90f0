"""The GPU backend of neighbour sampling: equal to the reference bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import CapacityError, InputError
from manyhop.graph import EdgeType, Graph, NodeType
from manyhop.sampling._check import check_request, check_spec
from manyhop.sampling._contract import NeighborSpec, NodeRequest, SampledSubgraph
from manyhop.sampling._gpu.capacity import Capacity, Ints, Shape, first_guess, worst_case
from manyhop.sampling._gpu.kernels import tables as t
from manyhop.sampling._gpu.plan import Plan
from manyhop.sampling._gpu.workspace import Workspace

_LOW64 = (1 << 64) - 1


class _Pool:
    """The workspaces of one shape."""

    def __init__(self, shape: Shape, capacity: Capacity, bound: Capacity) -> None:
        self.shape, self.capacity, self.bound = shape, capacity, bound
        self.learned = False
        self.free: list[Workspace] = []


class GPUSampler:
    """Samples neighbours on a GPU; safe to call from several threads and on several streams.

    Args:
        graph: the topology; its tensors lie in the memory of the device, in pinned host memory, or in memory of other GPUs
            that is mapped.
        spec: how to sample; the same for every request.
        device: where to sample, and where results are.

    Raises:
        InputError: the spec does not fit the graph, the device is no GPU, or a request does not fit the spec.
        GraphError: the graph lies where the GPU cannot read it, or is not laid out as :class:`manyhop.graph.CSC` says.
        CapacityError: a batch is too large for the sampler's table.
    """

    def __init__(self, graph: Graph, spec: NeighborSpec, *, device: torch.device | str) -> None:
        check_spec(graph, spec)
        self.graph, self.spec = graph, spec
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self._plan = Plan(graph, spec, self.device)
        self._lock = threading.Lock()
        self._pools: dict[Shape, _Pool] = {}

    def sample(self, request: NodeRequest) -> SampledSubgraph:
        """Sample around ``request.seeds``."""
        return self.begin([request]).finish()[0]

    def begin(self, requests: Sequence[NodeRequest]) -> Pending:
        """Enqueue the sampling of batches on the current stream, all in one launch, without waiting for anything.

        Returns:
            What :meth:`Pending.finish` makes the samples of; each is what :meth:`sample` would give.
        """
        if not requests:
            raise InputError("Expected at least one request, got none.")
        for request in requests:
            check_request(self.graph, self.spec, request, in_range=False)
        return Pending(self, tuple(requests))

    def _pool(self, requests: Sequence[NodeRequest]) -> _Pool:
        """The smallest pool that the batches fit in."""
        most = {name: 0 for name in self.graph.node_types}
        for request in requests:
            for name, seeds in request.seeds.items():
                most[name] = max(most[name], seeds.numel())
        needed = tuple(most.values())
        window = any(request.time_min is not None for request in requests)
        with self._lock:
            fitting = [
                pool
                for shape, pool in self._pools.items()
                if shape.window == window
                and len(requests) <= shape.num_batches <= 4 * len(requests)
                and all(n <= room <= max(8 * n, 4 * sum(needed)) for n, room in zip(needed, shape.seeds, strict=True))
            ]
            if fitting:
                return min(fitting, key=lambda pool: pool.shape.num_batches * sum(pool.shape.seeds))
            shape = Shape(len(requests), tuple(-(-n // 64) * 64 for n in needed), window)
            bound = worst_case(self.graph, self.spec, shape)
            guess = first_guess(self.graph, self.spec, shape)
            pool = _Pool(shape, guess.grown(guess.nodes, guess.edges, bound), bound)
            self._pools[shape] = pool
            return pool

    def _acquire(self, pool: _Pool) -> Workspace:
        with self._lock:
            workspace = pool.free.pop() if pool.free else None
        if workspace is None:
            return Workspace(self._plan, pool.shape, pool.capacity)
        if workspace.done is not None:
            torch.cuda.current_stream(self.device).wait_event(workspace.done)
        return workspace

    def _release(self, pool: _Pool, workspace: Workspace) -> None:
        if self.device.type == "cuda":
            workspace.done = torch.cuda.Event()
            workspace.done.record()
        with self._lock:
            if workspace.capacity is pool.capacity:
                pool.free.append(workspace)

    def _learn(self, pool: _Pool, workspace: Workspace, nodes: Ints, edges: Ints, *, too_small: bool) -> None:
        """Change the capacity of a pool; its workspaces go."""
        with self._lock:
            if workspace.capacity is not pool.capacity:
                return
            if too_small:
                pool.capacity = pool.capacity.grown(nodes, edges, pool.bound)
            else:
                pool.capacity = Capacity.learned(nodes, edges, pool.bound)
            pool.learned = True
            pool.free.clear()


class Pending:
    """Batches whose sampling is enqueued."""

    def __init__(self, sampler: GPUSampler, requests: tuple[NodeRequest, ...]) -> None:
        self._sampler, self._requests = sampler, requests
        self._stream = torch.cuda.current_stream(sampler.device) if sampler.device.type == "cuda" else None
        self._pool = sampler._pool(requests)
        self._workspace: Workspace | None = None
        self._launch()

    def _launch(self) -> None:
        workspace = self._workspace = self._sampler._acquire(self._pool)
        self._keep = _fill(workspace, self._requests, self._sampler.graph)
        workspace.launch()
        self._event = None
        if self._stream is not None:
            self._event = torch.cuda.Event()
            self._event.record()

    def finish(self) -> list[SampledSubgraph]:
        """Wait until the sizes of the samples are known, and enqueue what writes them, on the stream of ``begin``.

        Returns:
            One sample per request, in their order; tensors on the sampler's device.

        Raises:
            InputError: a seed is no node of the graph.
            CapacityError: a batch is too large.
        """
        if self._stream is None:
            return self._finish()
        with torch.cuda.stream(self._stream):
            return self._finish()

    def _finish(self) -> list[SampledSubgraph]:
        sampler = self._sampler
        while True:
            workspace = self._workspace
            if workspace is None:
                raise InputError("The batches have been finished already. Call begin() for the next ones.")
            if self._event is not None:
                self._event.synchronize()
            nodes, edges = _told(workspace)
            failed = workspace.failed.numpy()
            if not failed.any():
                break
            if failed[t.BAD_SEED.value]:
                self._give_back()
                for request in self._requests:
                    check_request(sampler.graph, sampler.spec, request)
            if edges.max(initial=0) >= (1 << 31) - 1 or nodes.max(initial=0) >= (1 << 31) - 1:
                self._give_back()
                raise CapacityError("A batch has 2^31 or more edges of a type. Use smaller fan-outs or batches.")
            sampler._learn(self._pool, workspace, nodes.max(1), edges.max(1), too_small=True)
            self._give_back()
            self._launch()
        try:
            samples = _results(workspace, self._requests, nodes, edges, sampler)
        finally:
            if not self._pool.learned:
                sampler._learn(self._pool, workspace, nodes.max(1), edges.max(1), too_small=False)
            self._give_back()
        return samples

    def _give_back(self) -> None:
        workspace, self._workspace = self._workspace, None
        if workspace is not None:
            self._sampler._release(self._pool, workspace)

    def __del__(self) -> None:
        self._give_back()


def _fill(workspace: Workspace, requests: Sequence[NodeRequest], graph: Graph) -> list[Tensor]:
    """Tell a launch its batches; returns tensors that must live as long as the launch."""
    head = workspace.begin_head()
    num_types = len(graph.node_types)
    index = {name: i for i, name in enumerate(graph.node_types)}
    regions = t.BATCHES.value + workspace.shape.num_batches * t.BATCH_COLUMNS.value
    at, first = workspace.head_size, 0
    begin = workspace.head_device.data_ptr()
    keep: list[Tensor] = []

    def put(values: Tensor) -> int:
        nonlocal at
        if values.is_cuda:
            keep.append(values.contiguous())
            return keep[-1].data_ptr()
        n = values.numel()
        head[at : at + n] = values.numpy()
        at += n
        return begin + 8 * (at - n)

    for b, request in enumerate(requests):
        batch = t.BATCHES.value + b * t.BATCH_COLUMNS.value
        key = np.array([part & _LOW64 for part in request.key], np.uint64)
        head[batch : batch + 3] = key.view(np.int64)
        head[batch + t.FIRST_TREE.value] = first
        for name, seeds in request.seeds.items():
            n = seeds.numel()
            row = regions + (b * num_types + index[name]) * t.SEED_COLUMNS.value
            values = [n, put(seeds), first, 0, 0]
            if request.time_max is not None:
                values[t.TIME_MAX.value] = put(request.time_max[name])
            if workspace.shape.window:
                no_limit = torch.full_like(seeds, torch.iinfo(torch.int64).min)
                values[t.TIME_MIN.value] = put(no_limit if request.time_min is None else request.time_min[name])
            head[row : row + t.SEED_COLUMNS.value] = values
            first += n
    return keep


def _told(workspace: Workspace) -> tuple[Ints, Ints]:
    """``nodes [num_hops + 1, num_batches, num_types]`` and ``edges [num_hops + 1, num_batches, num_edge_types]``."""
    hops, batches = workspace.plan.num_hops + 1, workspace.shape.num_batches
    nodes = workspace.told_nodes.numpy()[: hops * workspace.num_regions].reshape(hops, batches, -1).copy()
    rows = workspace.told_edges.numpy()[: hops * workspace.num_rows].reshape(hops, workspace.num_rows)
    return nodes, rows[:, workspace.row_of]


def _results(
    workspace: Workspace, requests: Sequence[NodeRequest], nodes: Ints, edges: Ints, sampler: GPUSampler
) -> list[SampledSubgraph]:
    """Make the tensors of all samples, and enqueue the kernel that fills them."""
    graph, disjoint = sampler.graph, sampler.spec.disjoint
    out = workspace.out.numpy()
    num_rows, num_types = workspace.num_rows, len(graph.node_types)
    row_of = workspace.row_of.tolist()
    samples = []
    for b in range(len(requests)):
        num_nodes, num_edges = nodes[-1, b].tolist(), edges[-1, b].tolist()
        sizes = [n for n in num_edges for _ in range(3)] + num_nodes + (num_nodes if disjoint else [])
        flat = torch.empty(sum(sizes), dtype=torch.int64, device=sampler.device)
        begins = [flat.data_ptr() + 8 * n for n in accumulate(sizes, initial=0)]
        for i, r in enumerate(row_of[b]):
            out[3 * r : 3 * r + 3] = begins[3 * i : 3 * i + 3]
        first = 3 * len(num_edges)
        for q in range(num_types):
            to = 3 * num_rows + 2 * (b * num_types + q)
            out[to] = begins[first + q]
            out[to + 1] = begins[first + num_types + q] if disjoint else 0
        samples.append(_dress(graph, flat.split(sizes), nodes[:, b], edges[:, b], disjoint=disjoint))
    workspace.finish(int(max(nodes[-1].max(initial=0), edges[-1].max(initial=0))))
    return samples


def _dress(
    graph: Graph, parts: Sequence[Tensor], nodes: Ints, edges: Ints, *, disjoint: bool
) -> SampledSubgraph:
    """One sample from its tensors and its counts after each hop."""
    num_edge_types, num_types = len(graph.edge_types), len(graph.node_types)
    row: dict[EdgeType, Tensor] = {}
    col: dict[EdgeType, Tensor] = {}
    edge_id: dict[EdgeType, Tensor | None] = {}
    for i, edge_type in enumerate(graph.edge_types):
        row[edge_type], col[edge_type], edge_id[edge_type] = parts[3 * i : 3 * i + 3]
    first = 3 * num_edge_types
    added = np.diff(nodes, axis=0, prepend=0).T.tolist()
    found = np.diff(edges, axis=0).T.tolist()
    return SampledSubgraph(
        node=dict(zip(graph.node_types, parts[first : first + num_types], strict=True)),
        row=row,
        col=col,
        edge_id=edge_id,
        tree=dict(zip(graph.node_types, parts[first + num_types :], strict=True)) if disjoint else None,
        num_sampled_nodes=dict(zip(graph.node_types, added, strict=True)),
        num_sampled_edges=dict(zip(graph.edge_types, found, strict=True)),
    )
