"""The memory of launches: workspaces for one launch at a time, with their CUDA graphs, and its samples."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence
from operator import sub
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from manyhop.graph import EdgeType, NodeType
from manyhop.sampling.contract import NodeRequest, SampledSubgraph
from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.hops.nodes import SHARING
from manyhop.sampling.gpu.launch.plan import Ints, Plan
from manyhop.sampling.gpu.launch.recording import compile_ahead, record
from manyhop.sampling.gpu.launch.sequence import KernelSequence
from manyhop.sampling.gpu.transfer import upload
from manyhop.system.triton_launch import low_64_bits

_SHARING = SHARING.value


class Workspace:
    """Memory for one launch at a time, and the CUDA graphs that use it: with the last kernel, without it, it alone.

    Args:
        kernels: enqueues the kernels of a launch.
        stream: the stream of the launches; ``None`` without CUDA.
    """

    def __init__(self, kernels: KernelSequence, stream: torch.cuda.Stream | None) -> None:
        self.kernels, self.stream = kernels, stream
        self.plan, self.shape, self.capacity = kernels.plan, kernels.shape, kernels.capacity
        self.extent, self.host = kernels.extent, kernels.host
        extent, num_batches = self.extent, self.shape.num_batches
        self._stamp, self._turn = 0, 0
        self._launched: torch.cuda.Event | None = None
        self.total_capacity = num_batches * int(self.capacity.nodes[-1].sum() + self.capacity.edges[-1].sum())
        """Capacity for nodes and edges, summed over batches and types."""
        self.layout = Layout(self.plan, extent.segment_of, num_batches)
        self.max_sizes = self.layout.allocation_sizes(extent.edge_capacity, extent.node_capacity, num_batches)
        """Sizes of preallocated results."""
        if self.plan.device.type == "cuda":
            self._capture()

    def _capture(self) -> None:
        """Compile, launch once without seeds, then record the graphs."""
        kernels, host, device = self.kernels, self.host, self.plan.device
        memory, stamp = self.begin_descriptor()
        memory[: host.descriptor_size] = 0
        memory[t.STAMP.value] = stamp
        if kernels.compiles_ahead:
            compile_ahead(kernels.run_and_write, device)
        kernels.run()
        for out in (host.out, *host.outs):
            kernels.write(out)
        self._graph = record(kernels.run, device)
        self._whole = record(kernels.run_and_write, device)
        self._ends = [record(functools.partial(kernels.write, out), device) for out in host.outs]
        self._launched = torch.cuda.Event()  # type: ignore[no-untyped-call]
        torch.cuda.current_stream(device).synchronize()  # the launch above reads the descriptor, which changes next

    def begin_descriptor(self) -> tuple[Ints, int]:
        """Begin the next launch. Return the memory of its descriptor, and its stamp."""
        self._stamp += 1
        if self._stamp >= 1 << self.extent.stamp_bits:
            self.kernels.memory.hash_table.zero_()
            self._stamp = 1
        host = self.host
        host.failed_array.fill(0)
        self._turn ^= 1
        return host.descriptor_array, self._stamp

    def __del__(self) -> None:
        """Wait for the GPU, which may still read host memory that is about to be freed."""
        if getattr(self, "_launched", None) is not None and self.stream is not None and not sys.is_finalizing():
            self.stream.synchronize()

    def move_to(self, stream: torch.cuda.Stream | None) -> Workspace:
        """Move to another stream, which waits for the work on the former one."""
        if stream is not None and self.stream is not None:
            stream.wait_stream(self.stream)
        self.stream = stream
        return self

    def launch(self, addresses: list[int] | None = None) -> None:
        """Sample the batches of the descriptor, on the current stream, which must be that of the workspace.

        Args:
            addresses: of the results, to write them as well; ``None``: call :meth:`finish` later.
        """
        if addresses is not None:
            self.host.out_array[: len(addresses)] = addresses
        if self.stream is None or self._launched is None:
            (self.kernels.run if addresses is None else self.kernels.run_and_write)()
        else:
            (self._graph if addresses is None else self._whole).launch(self.stream)
            self._launched.record(self.stream)

    def wait(self) -> LaunchReport:
        """Wait for the launch, but not for later work on its stream. Return its report."""
        if self._launched is not None:
            self._launched.synchronize()
        host = self.host
        return LaunchReport.read(host.node_counts, host.result_counts, host.failed_array)

    def required(self) -> tuple[Ints, Ints]:
        """Return the largest counts of nodes and edges per batch, with the shapes of :class:`Capacity`."""
        hops, batches, host = self.plan.num_hops + 1, self.shape.num_batches, self.host
        return host.node_counts.reshape(hops, batches, -1).max(1), host.edge_counts[:, self.extent.segment_of].max(1)

    def finish(self, addresses: list[int]) -> None:
        """Write the results of the launch, on the current stream.

        Args:
            addresses: of the allocations of the results.
        """
        turn, host = self._turn, self.host
        host.out_arrays[turn][: len(addresses)] = addresses
        if self.stream is None:
            self.kernels.write(host.outs[turn])
        else:
            self._ends[turn].launch(self.stream)


class LaunchReport(NamedTuple):
    """Counts and failures of a launch, read from the memory that kernels report to."""

    nodes: list[list[int]]
    """``[num_type_ranges][num_hops + 1]``: seeds, then the nodes that each hop added."""
    edges: list[list[int]]
    """``[num_segments][num_hops]``: edges that each hop added."""
    num_nodes: list[int]
    """``[num_type_ranges]``: all nodes."""
    num_edges: list[int]
    """``[num_segments]``: all edges."""
    failed: list[int]
    """``[FAILED_COLUMNS]``: nonzero for each kind of failure that occurred."""

    @classmethod
    def read(cls, nodes: Ints, edges: Ints, failed: Ints) -> LaunchReport:
        """Build a report from the numbers after each hop, ``[num_hops + 1, ..]``."""
        if nodes.shape[1] == edges.shape[1] == 1:  # a batch alone: numpy is slower than Python for single numbers
            (of_nodes,), (of_edges,) = nodes.T.tolist(), edges.T.tolist()
            new = [of_nodes[0], *map(sub, of_nodes[1:], of_nodes)]
            return cls([new], [[*map(sub, of_edges[1:], of_edges)]], of_nodes[-1:], of_edges[-1:], failed.tolist())
        added = nodes.copy()
        added[1:] -= nodes[:-1]
        return cls(
            added.T.tolist(),
            (edges[1:] - edges[:-1]).T.tolist(),
            nodes[-1].tolist(),
            edges[-1].tolist(),
            failed.tolist(),
        )


class Layout:
    """Layout of samples in memory: allocations that multiple batches share, batch by batch.

    A batch has its segments (row, column and edge id), then its type ranges (node; tree if disjoint). An
    allocation may be larger than its samples; unused memory is at its end.

    Args:
        plan: the graph and the spec.
        segment_of: ``[num_batches][num_edge_types]``: the segments of each batch.
        num_batches: largest number of batches of a launch.
    """

    def __init__(self, plan: Plan, segment_of: list[list[int]], num_batches: int) -> None:
        self.per_node = 2 if plan.spec.disjoint else 1
        self.num_edge_types, self.num_types = len(plan.edge_types), len(plan.types)
        self.types = list(plan.types)
        self.segments = list(zip(plan.edge_types, segment_of[0] if segment_of else [], strict=True))
        self._all = parts_of(num_batches)

    def parts(self, num_batches: int) -> list[range]:
        """Return the batches of each allocation."""
        return self._all if num_batches == self._all[-1].stop else parts_of(num_batches)

    def allocation_sizes(self, edges: Sequence[int], nodes: Sequence[int], num_batches: int) -> list[int]:
        """Return the size of each allocation, from the edges of each segment and the nodes of each type range."""
        e, q = self.num_edge_types, self.num_types
        return [
            3 * sum(edges[p.start * e : p.stop * e]) + self.per_node * sum(nodes[p.start * q : p.stop * q])
            for p in self.parts(num_batches)
        ]

    def samples(self, memory: Tensor, batches: range, report: LaunchReport) -> list[SampledSubgraph]:
        """Return the samples of batches, which own their allocation."""
        e, q, per_node = self.num_edge_types, self.num_types, self.per_node
        sizes: list[int] = []
        for b in batches:
            for n in report.num_edges[b * e : (b + 1) * e]:
                sizes += (n, n, n)
            for n in report.num_nodes[b * q : (b + 1) * q]:
                sizes += (n,) * per_node
        sizes.append(memory.shape[0] - sum(sizes))
        # Unlike views from split(), these tensors do not share a version counter: users may change them one by one.
        pieces = memory.unsafe_split_with_sizes(sizes)
        samples: list[SampledSubgraph] = []
        at = 0
        for b in batches:  # without comprehensions, whose calls take longer than few types
            tree: dict[NodeType, Tensor] = {}
            num_nodes: dict[NodeType, list[int]] = {}
            num_edges: dict[EdgeType, list[int]] = {}
            sample = SampledSubgraph(
                node={},
                row={},
                col={},
                edge_id={},
                tree=tree if per_node == 2 else None,
                num_sampled_nodes=num_nodes,
                num_sampled_edges=num_edges,
            )
            for edge_type, r in self.segments:
                i = at + 3 * r
                sample.row[edge_type], sample.col[edge_type], sample.edge_id[edge_type] = pieces[i : i + 3]
                num_edges[edge_type] = report.edges[b * e + r]
            at += 3 * e
            for k, node_type in enumerate(self.types, b * q):
                sample.node[node_type], num_nodes[node_type] = pieces[at], report.nodes[k]
                if per_node == 2:
                    tree[node_type] = pieces[at + 1]
                at += per_node
            samples.append(sample)
        return samples


class Results:
    """The memory of the samples of a launch.

    Args:
        layout: how samples share memory.
        sizes: of the allocations.
        num_batches: number of samples.
        device: where they are.
    """

    def __init__(self, layout: Layout, sizes: list[int], num_batches: int, device: torch.device) -> None:
        self.layout, self._parts = layout, layout.parts(num_batches)
        self._memory = [torch.empty(n, dtype=torch.int64, device=device) for n in sizes]
        self.addresses = [memory.data_ptr() for memory in self._memory]
        """Addresses of the allocations."""
        self.report: LaunchReport
        """The counts of the samples, once they are known."""
        self.weights: list[dict[EdgeType, Tensor]] | None = None
        """Weights of the edges of each sample, if edges have weights."""

    def cut(self) -> list[SampledSubgraph]:
        """Return the samples, which own the memory."""
        samples: list[SampledSubgraph] = []
        for memory, batches in zip(self._memory, self._parts, strict=True):
            samples += self.layout.samples(memory, batches, self.report)
        for sample, weight in zip(samples, self.weights or (), strict=False):
            sample.edge_weight = weight
        return samples


def parts_of(num_batches: int) -> list[range]:
    """Return the batches that share each allocation."""
    return [range(b, min(b + _SHARING, num_batches)) for b in range(0, num_batches, _SHARING)]


_BATCHES, _BATCH, _SEEDS = t.BATCHES.value, t.BATCH_COLUMNS.value, t.SEED_COLUMNS.value
_TIME_MAX, _TIME_MIN = t.TIME_MAX.value, t.TIME_MIN.value


def write_descriptor(workspace: Workspace, requests: Sequence[NodeRequest]) -> list[Tensor]:
    """Write the descriptor of a launch for its batches. Return the tensors that must outlive the launch."""
    _, stamp = workspace.begin_descriptor()
    types, shape, host = workspace.plan.types, workspace.shape, workspace.host
    descriptor_size = host.descriptor_size
    descriptor = [stamp] + [0] * (descriptor_size - 1)
    address: int = host.seeds_address
    keep: list[Tensor] = []

    def put(values: Tensor) -> int:
        """Return the address of an array, which is copied behind the descriptor if it is on the host."""
        nonlocal address
        values = values.resolve_neg()
        if values.is_cuda:
            values = values.to(workspace.plan.device, torch.int64).contiguous()
            keep.append(values)
            return values.data_ptr()
        values, at = values.contiguous(), address
        ctypes.memmove(at, values.data_ptr(), values.nbytes)
        address += values.nbytes
        return at

    batch, type_ranges, first = _BATCHES, _BATCHES + shape.num_batches * _BATCH, 0
    for request in requests:
        seed, epoch, number = request.key
        if (seed | epoch | number) >> 63:
            seed, epoch, number = map(low_64_bits, request.key)
        descriptor[batch : batch + _BATCH] = seed, epoch, number, first
        for name, seeds in request.seeds.items():
            n = seeds.shape[0]
            type_range = type_ranges + types[name] * _SEEDS
            descriptor[type_range : type_range + 3] = n, put(seeds), first
            if request.time_max is not None:
                descriptor[type_range + _TIME_MAX] = put(request.time_max[name])
            if shape.window:
                no_limit = torch.full_like(seeds, torch.iinfo(torch.int64).min)
                descriptor[type_range + _TIME_MIN] = put(
                    no_limit if request.time_min is None else request.time_min[name]
                )
            first += n
        batch += _BATCH
        type_ranges += len(types) * _SEEDS
    if shape.exclude:
        for at_segment, ids in _excluded(workspace, requests):
            descriptor[at_segment : at_segment + 2] = ids.data_ptr(), ids.numel()
            keep.append(ids)
    host.write_descriptor(*descriptor)
    return keep


def _excluded(workspace: Workspace, requests: Sequence[NodeRequest]) -> list[tuple[int, Tensor]]:
    """Return pairs of a position in the descriptor and the sorted ids of edges to exclude, on the device."""
    found, on_host, where = [], [], []
    for request, segments in zip(requests, workspace.extent.segment_of, strict=False):
        for edge_type, r in zip(workspace.plan.edge_types, segments, strict=True):
            ids = (request.exclude or {}).get(edge_type)
            if ids is None or ids.numel() == 0:
                continue
            if ids.is_cuda:
                found.append((workspace.host.excluded_at + 2 * r, torch.sort(ids.to(workspace.plan.device)).values))
            else:
                on_host.append(np.sort(ids.resolve_neg().numpy()))
                where.append(workspace.host.excluded_at + 2 * r)
    return found + list(zip(where, upload(on_host, workspace.plan.device), strict=True))
