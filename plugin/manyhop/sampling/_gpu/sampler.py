"""The GPU backend of neighbour sampling: equal to the reference bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

import torch
from torch import Tensor

from manyhop.errors import CapacityError, InputError
from manyhop.graph import EdgeType, Graph
from manyhop.sampling._check import check_request, check_spec
from manyhop.sampling._contract import NeighborSpec, NodeRequest, SampledSubgraph
from manyhop.sampling._gpu.bidirectional import add_reverses
from manyhop.sampling._gpu.capacity import Capacity, Shape, first_guess, worst_case
from manyhop.sampling._gpu.induced import Inducer
from manyhop.sampling._gpu.kernels import tables as t
from manyhop.sampling._gpu.plan import Plan
from manyhop.sampling._gpu.workspace import Workspace

_LOW64: Final = (1 << 64) - 1
_MOST_EDGES = (1 << 31) - 1
Counts = list[list[int]]


class _Pool:
    """The workspaces of one shape."""

    def __init__(self, shape: Shape, capacity: Capacity, bound: Capacity) -> None:
        self.shape, self.capacity, self.bound = shape, capacity, bound
        self.learned = False
        self.free: list[Workspace] = []


class GPUSampler:
    """Samples neighbours on a GPU; safe to call from several threads and on several streams.

    Args:
        graph: the topology; its tensors lie in the memory of the device, in pinned host memory, or in mapped memory of
            other GPUs.
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
        self._inducer = Inducer(graph, self.device) if spec.subgraph == "induced" else None
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
        most = dict.fromkeys(self._plan.types, 0)
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
            workspace.done.wait()
        return workspace

    def _release(self, pool: _Pool, workspace: Workspace) -> None:
        if workspace.done is not None:
            workspace.done.record()
        with self._lock:
            if workspace.capacity is pool.capacity:
                pool.free.append(workspace)

    def _learn(self, pool: _Pool, workspace: Workspace, *, too_small: bool) -> None:
        """Change the capacity of a pool to what a launch needed; its workspaces go."""
        nodes, edges = workspace.needed()
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
        self._workspace: Workspace | None = None
        self._sampler, self._requests = sampler, requests
        self._stream = torch.cuda.current_stream(sampler.device) if sampler.device.type == "cuda" else None
        self._pool = sampler._pool(requests)
        self._launch()

    def _launch(self) -> None:
        workspace = self._workspace = self._sampler._acquire(self._pool)
        self._keep = _fill(workspace, self._requests)
        workspace.launch()

    def finish(self) -> list[SampledSubgraph]:
        """Wait until the sizes of the samples are known, and enqueue what writes them, on the stream of ``begin``.

        Returns:
            One sample per request, in their order; tensors on the sampler's device.

        Raises:
            InputError: a seed is no node of the graph.
            CapacityError: a batch is too large.
        """
        if self._stream is None or self._stream == torch.cuda.current_stream(self._sampler.device):
            return self._finish()
        with torch.cuda.stream(self._stream):
            return self._finish()

    def _finish(self) -> list[SampledSubgraph]:
        sampler = self._sampler
        while True:
            workspace = self._workspace
            if workspace is None:
                raise InputError("The batches have been finished already. Call begin() for the next ones.")
            nodes, edges, failed = workspace.wait()
            if not any(failed):
                break
            if failed[t.BAD_SEED.value]:
                self._give_back()
                for request in self._requests:
                    check_request(sampler.graph, sampler.spec, request)
            if max(map(max, nodes)) >= _MOST_EDGES or max(map(max, edges)) >= _MOST_EDGES:
                self._give_back()
                raise CapacityError("A batch has 2^31 or more edges of a type. Use smaller fan-outs or batches.")
            sampler._learn(self._pool, workspace, too_small=True)
            self._give_back()
            self._launch()
        try:
            samples = _results(workspace, len(self._requests), nodes, edges)
        finally:
            if not self._pool.learned:
                sampler._learn(self._pool, workspace, too_small=False)
            self._give_back()
        if sampler._inducer is not None:
            return sampler._inducer.replace_edges(samples)
        if sampler.spec.reverse is not None:
            return add_reverses(samples, sampler.spec.reverse)
        return samples

    def _give_back(self) -> None:
        workspace, self._workspace = self._workspace, None
        if workspace is not None:
            self._sampler._release(self._pool, workspace)

    def __del__(self) -> None:
        if self._workspace is not None:
            self._workspace.wait()  # for the host's part of its memory
            self._give_back()


def _fill(workspace: Workspace, requests: Sequence[NodeRequest]) -> list[Tensor]:
    """Tell a launch its batches; returns tensors that must live as long as the launch."""
    memory, stamp = workspace.begin_head()
    types = workspace.plan.types
    head = [stamp] + [0] * (workspace.head_size - 1)
    regions = t.BATCHES.value + workspace.shape.num_batches * t.BATCH_COLUMNS.value
    at, first = workspace.head_size, 0
    begin = workspace.head.data_ptr()
    keep: list[Tensor] = []

    def put(values: Tensor) -> int:
        nonlocal at
        if values.is_cuda:
            values = values.contiguous()
            keep.append(values)
            return values.data_ptr()
        n = values.numel()
        memory[at : at + n] = values.numpy()
        at += n
        address: int = begin + 8 * (at - n)
        return address

    for b, request in enumerate(requests):
        batch = t.BATCHES.value + b * t.BATCH_COLUMNS.value
        head[batch : batch + t.BATCH_COLUMNS.value] = [*map(_signed, request.key), first]
        for name, seeds in request.seeds.items():
            n = seeds.numel()
            row = regions + (b * len(types) + types[name]) * t.SEED_COLUMNS.value
            values = [n, put(seeds), first, 0, 0]
            if request.time_max is not None:
                values[t.TIME_MAX.value] = put(request.time_max[name])
            if workspace.shape.window:
                no_limit = torch.full_like(seeds, torch.iinfo(torch.int64).min)
                values[t.TIME_MIN.value] = put(no_limit if request.time_min is None else request.time_min[name])
            head[row : row + t.SEED_COLUMNS.value] = values
            first += n
    memory[: workspace.head_size] = head
    return keep


def _signed(x: int) -> int:
    """The int64 with the low 64 bits of ``x``."""
    low = x & _LOW64
    return low - _LOW64 - 1 if low >> 63 else low


def _results(workspace: Workspace, num_batches: int, nodes: Counts, edges: Counts) -> list[SampledSubgraph]:
    """Make the tensors of all samples, and enqueue the kernel that fills them.

    Args:
        nodes: after each hop, of each region.
        edges: after each hop, of each row.
    """
    plan = workspace.plan
    disjoint, num_types = plan.spec.disjoint, len(plan.types)
    rows, regions = [0] * (3 * workspace.num_rows), [0] * (2 * workspace.num_regions)
    samples = []
    for b in range(num_batches):
        of_type = range(b * num_types, (b + 1) * num_types)
        of_edge_type = workspace.row_of[b]
        sizes = [n for r in of_edge_type for n in (edges[-1][r],) * 3]
        sizes += [nodes[-1][q] for q in of_type] * (2 if disjoint else 1)
        memory = torch.empty(sum(sizes), dtype=torch.int64, device=plan.device)
        parts = memory.split_with_sizes(sizes)
        address = list(accumulate((8 * n for n in sizes), initial=memory.data_ptr()))
        for i, r in enumerate(of_edge_type):
            rows[3 * r : 3 * r + 3] = address[3 * i : 3 * i + 3]
        first = 3 * len(of_edge_type)
        regions[2 * of_type.start : 2 * of_type.stop : 2] = address[first : first + num_types]
        if disjoint:
            regions[2 * of_type.start + 1 : 2 * of_type.stop : 2] = address[first + num_types : first + 2 * num_types]
        row: dict[EdgeType, Tensor] = {}
        col: dict[EdgeType, Tensor] = {}
        edge_id: dict[EdgeType, Tensor | None] = {}
        for i, edge_type in enumerate(plan.graph.edge_types):
            row[edge_type], col[edge_type], edge_id[edge_type] = parts[3 * i : 3 * i + 3]
        samples.append(
            SampledSubgraph(
                node=dict(zip(plan.types, parts[first : first + num_types], strict=True)),
                row=row,
                col=col,
                edge_id=edge_id,
                tree=dict(zip(plan.types, parts[first + num_types :], strict=True)) if disjoint else None,
                num_sampled_nodes={name: _added(nodes, q) for name, q in zip(plan.types, of_type, strict=True)},
                num_sampled_edges={
                    name: _added(edges, r)[1:] for name, r in zip(plan.graph.edge_types, of_edge_type, strict=True)
                },
            )
        )
    workspace.finish(rows + regions)
    return samples


def _added(counts: Counts, i: int) -> list[int]:
    """What each hop added."""
    return [b - a for a, b in pairwise((0, *(row[i] for row in counts)))]
