"""The resources of one launch at a time: kernels, working memory, CUDA graphs."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from manyhop.sampling.contract import NodeRequest
from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.launch.plan import Ints
from manyhop.sampling.gpu.launch.recording import compile_ahead, record
from manyhop.sampling.gpu.launch.results import LaunchReport, Layout
from manyhop.sampling.gpu.launch.sequence import KernelSequence
from manyhop.sampling.gpu.transfer import low_64_bits, upload


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
