"""Batches on their way through a workspace, and the samples that come out."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import CapacityError
from manyhop.sampling._check import check_request
from manyhop.sampling._contract import NodeRequest, SampledSubgraph
from manyhop.sampling._gpu.capacity import Capacity, Ints, Shape, first_guess, worst_case
from manyhop.sampling._gpu.kernels import tables as t
from manyhop.sampling._gpu.plan import Plan
from manyhop.sampling._gpu.seeds import SeedGroup
from manyhop.sampling._gpu.transfer import low_64_bits, upload
from manyhop.sampling._gpu.workspace import Workspace

Counts = list[list[int]]

_MOST_EDGES = (1 << 31) - 1
_SHARING = 4  # batches of a launch whose samples share an allocation


class Pool:
    """The workspaces of one shape, and what is known about their capacity."""

    def __init__(self, plan: Plan, shape: Shape, workspace: type[Workspace]) -> None:
        self.plan, self.shape, self._workspace = plan, shape, workspace
        self._bound = worst_case(plan.graph, plan.spec, shape)
        guess = first_guess(plan.graph, plan.guess, shape)
        self._capacity = Capacity.learned(guess.nodes, guess.edges, self._bound)
        self._learned = False
        self._free: list[Workspace] = []
        self._lock = threading.Lock()

    def acquire(self, stream: torch.cuda.Stream | None) -> Workspace:
        """A workspace for use on a stream.

        Raises:
            CapacityError: a new one does not fit into the device's memory, or its nodes into a table.
        """
        with self._lock:
            capacity = self._capacity
            for i, workspace in enumerate(reversed(self._free)):
                if workspace.stream is stream:
                    return self._free.pop(~i)
            if self._free:
                return self._free.pop(0).move_to(stream)
        try:
            return self._workspace(self.plan, self.shape, capacity, stream)
        except torch.OutOfMemoryError as error:
            raise CapacityError(
                f"The memory of {self.plan.device} has no room to sample {self.shape.num_batches} batches of up to "
                f"{sum(self.shape.seeds)} seeds at a time. Use smaller fan-outs or batches, or keep other data "
                "elsewhere."
            ) from error

    def release(self, workspace: Workspace) -> None:
        """Give a workspace back, for use after what is enqueued on its stream."""
        with self._lock:
            if workspace.capacity is self._capacity:
                self._free.append(workspace)

    def learn(self, workspace: Workspace, *, failed: bool) -> None:
        """Change the capacity to what a launch needed, where it was too small or but a guess; workspaces go then."""
        if self._learned and not failed:
            return
        nodes, edges = workspace.needed()
        with self._lock:
            if workspace.capacity is not self._capacity:
                return
            if failed:
                self._capacity = self._capacity.grown(nodes, edges, self._bound)
            else:
                self._capacity = Capacity.learned(nodes, edges, self._bound)
                self._learned = True
            self._free.clear()


class Launch:
    """Batches whose sampling is enqueued on a stream, the current one, in one launch."""

    def __init__(self, pool: Pool, requests: Sequence[NodeRequest], stream: torch.cuda.Stream | None) -> None:
        self._workspace: Workspace | None = None
        self._pool, self._requests, self._stream = pool, requests, stream
        self._begin()

    def _begin(self) -> None:
        workspace = self._pool.acquire(self._stream)
        requests = self._requests
        self._keep = requests.fill(workspace) if isinstance(requests, SeedGroup) else _fill(workspace, requests)
        workspace.launch()
        self._workspace = workspace

    def finish(self) -> list[SampledSubgraph]:
        """The samples (directional ones), on the same stream; waits for their sizes.

        Raises:
            InputError: a seed is no node of the graph.
            CapacityError: the batches do not fit into a launch.
        """
        while True:
            workspace = self._workspace
            assert workspace is not None, "a launch is finished once"
            nodes, edges, failed = workspace.wait()
            if not any(failed):
                break
            if failed[t.BAD_SEED.value]:
                self.give_back()
                for request in self._requests:
                    check_request(self._pool.plan.graph, self._pool.plan.spec, request)
            self._pool.learn(workspace, failed=True)
            self.give_back()
            if max(map(sum, (*nodes, *edges))) >= _MOST_EDGES:
                raise CapacityError("A batch has 2^31 or more edges of a type. Use smaller fan-outs or batches.")
            self._begin()
        try:
            return _results(workspace, len(self._requests), nodes, edges)
        finally:
            self._pool.learn(workspace, failed=False)
            self.give_back()

    def give_back(self) -> None:
        """Let go of the workspace."""
        workspace, self._workspace = self._workspace, None
        if workspace is not None:
            self._pool.release(workspace)

    def __del__(self) -> None:
        if self._workspace is not None:
            self._workspace.wait()  # before the host changes its part of the memory
            self.give_back()


def _fill(workspace: Workspace, requests: Sequence[NodeRequest]) -> list[Tensor]:
    """Tell a launch its batches; returns tensors that must live as long as the launch."""
    memory, stamp = workspace.begin_head()
    types = workspace.plan.types
    head = [stamp] + [0] * (workspace.head_size - 1)
    regions = t.BATCHES.value + workspace.shape.num_batches * t.BATCH_COLUMNS.value
    at, first = workspace.head_size, 0
    begin = workspace.head.data_ptr()
    keep: list[Tensor] = []
    arrays: list[Ints] = []  # of the host: they go into the head all at once

    def put(values: Tensor) -> int:
        nonlocal at
        if values.is_cuda:
            values = values.to(workspace.plan.device, torch.int64).contiguous()
            keep.append(values)
            return values.data_ptr()
        arrays.append(values.numpy())
        address: int = begin + 8 * at
        at += values.numel()
        return address

    for b, request in enumerate(requests):
        batch = t.BATCHES.value + b * t.BATCH_COLUMNS.value
        head[batch : batch + t.BATCH_COLUMNS.value] = [*map(low_64_bits, request.key), first]
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
    if workspace.shape.exclude:
        for at_row, ids in _excluded(workspace, requests):
            head[at_row : at_row + 2] = ids.data_ptr(), ids.numel()
            keep.append(ids)
    memory[: workspace.head_size] = head
    if arrays:
        np.concatenate(arrays, out=memory[workspace.head_size : at])
    return keep


def _excluded(workspace: Workspace, requests: Sequence[NodeRequest]) -> list[tuple[int, Tensor]]:
    """Where in the head of a launch which sorted ids of edges, on the device, are told."""
    found, on_host, where = [], [], []
    for request, rows in zip(requests, workspace.row_of, strict=False):
        for edge_type, r in zip(workspace.plan.edge_types, rows, strict=True):
            ids = (request.exclude or {}).get(edge_type)
            if ids is None or ids.numel() == 0:
                continue
            if ids.is_cuda:
                found.append((workspace.excluded_at + 2 * r, torch.sort(ids.to(workspace.plan.device)).values))
            else:
                on_host.append(np.sort(ids.numpy()))
                where.append(workspace.excluded_at + 2 * r)
    return found + list(zip(where, upload(on_host, workspace.plan.device), strict=True))


def _results(workspace: Workspace, num_batches: int, nodes: Counts, edges: Counts) -> list[SampledSubgraph]:
    """Make the tensors of all samples, and enqueue the kernel that fills them.

    Args:
        nodes: of each region, what each hop added, seeds first.
        edges: of each row, what each hop added.
    """
    plan = workspace.plan
    types, edge_types, disjoint = plan.types, plan.edge_types, plan.spec.disjoint
    num_types, first = len(types), 3 * len(edge_types)
    rows, regions = [0] * (3 * workspace.num_rows), [0] * (2 * workspace.num_regions)
    totals, node_totals = [sum(per_hop) for per_hop in edges], [sum(per_hop) for per_hop in nodes]
    sizes: list[list[int]] = []
    for b, of_row in enumerate(workspace.row_of[:num_batches]):
        of_nodes = node_totals[b * num_types : (b + 1) * num_types]
        sizes.append([totals[r] for r in of_row for _ in range(3)] + (of_nodes * 2 if disjoint else of_nodes))
    samples = []
    for b, (parts, address) in enumerate(_memory(sizes, plan.device)):
        of_row, added = workspace.row_of[b], nodes[b * num_types : (b + 1) * num_types]
        for i, r in enumerate(of_row):
            rows[3 * r : 3 * r + 3] = address[3 * i : 3 * i + 3]
        for i in range(first, first + num_types):
            at = 2 * (b * num_types + i - first)
            regions[at : at + 2] = address[i], address[i + num_types] if disjoint else 0
        samples.append(
            _sample(
                node=dict(zip(types, parts[first : first + num_types], strict=True)),
                row=dict(zip(edge_types, parts[0:first:3], strict=True)),
                col=dict(zip(edge_types, parts[1:first:3], strict=True)),
                edge_id=dict(zip(edge_types, parts[2:first:3], strict=True)),
                tree=dict(zip(types, parts[first + num_types :], strict=True)) if disjoint else None,
                num_sampled_nodes=dict(zip(types, added, strict=True)),
                num_sampled_edges=dict(zip(edge_types, [edges[r] for r in of_row], strict=True)),
                edge_weight=workspace.edge_weights(of_row, [totals[r] for r in of_row]),
            )
        )
    workspace.finish(rows + regions)
    return samples


def _memory(sizes: Sequence[list[int]], device: torch.device) -> Iterator[tuple[Sequence[Tensor], list[int]]]:
    """Tensors of these sizes for each batch, one behind the other, and their addresses. A few batches share an
    allocation, which takes as long as all else that is done for them here.
    """
    for begin in range(0, len(sizes), _SHARING):
        together = sizes[begin : begin + _SHARING]
        flat = [n for of_batch in together for n in of_batch]
        memory = torch.empty(sum(flat), dtype=torch.int64, device=device)
        parts: Sequence[Tensor] = memory.split_with_sizes(flat)
        if len(together) > 1:
            parts = [part.data for part in parts]  # autograd does not take a change of one batch for a change of all
        address = [memory.data_ptr() + 8 * n for n in accumulate(flat, initial=0)]
        count = len(together[0])
        for k in range(0, len(flat), count):
            yield parts[k : k + count], address[k : k + count]


def _sample(**fields: Any) -> SampledSubgraph:
    """A sample of all these fields, in a quarter of the time that a frozen dataclass takes."""
    sample = object.__new__(SampledSubgraph)
    sample.__dict__.update(fields)
    return sample
