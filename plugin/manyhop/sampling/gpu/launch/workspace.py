"""The resources of one launch at a time: kernels, working memory, CUDA graphs."""

from __future__ import annotations

import functools
import sys

import torch

from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.launch.capacity import Ints
from manyhop.sampling.gpu.launch.recording import compile_ahead, record
from manyhop.sampling.gpu.launch.results import LaunchReport, Layout
from manyhop.sampling.gpu.launch.sequence import KernelSequence


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
        torch.cuda.current_stream(
            device
        ).synchronize()  # the launch above reads the descriptor, which changes from now on

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
        """Sample the batches of the descriptor, on the current stream, which has to be that of the workspace.

        Args:
            addresses: of the results, to write them, too; ``None``: call :meth:`finish` later.
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
