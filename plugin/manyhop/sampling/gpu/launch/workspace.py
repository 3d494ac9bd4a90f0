"""What launches need one at a time: their kernels, the memory in which these work, and CUDA graphs."""

from __future__ import annotations

import functools
import sys

import torch

from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.launch.capacity import Ints
from manyhop.sampling.gpu.launch.compiling import compile_ahead
from manyhop.sampling.gpu.launch.recording import record
from manyhop.sampling.gpu.launch.results import Layout, Told
from manyhop.sampling.gpu.launch.sequence import KernelSequence


class Workspace:
    """Memory for one launch at a time, and the CUDA graphs that work in it: one for the launch, one for its end.

    Args:
        kernels: enqueues the kernels of a launch.
        stream: where it is used.
    """

    def __init__(self, kernels: KernelSequence, stream: torch.cuda.Stream | None) -> None:
        self.kernels, self.stream = kernels, stream
        self.plan, self.shape, self.capacity = kernels.plan, kernels.shape, kernels.capacity
        self.extent, self.host = kernels.extent, kernels.host
        extent, num_batches = self.extent, self.shape.num_batches
        self._stamp, self._turn = 0, 0
        self._launched: torch.cuda.Event | None = None
        self.num_rooms = num_batches * int(self.capacity.nodes[-1].sum() + self.capacity.edges[-1].sum())
        """Room for nodes and edges of all batches."""
        self.layout = Layout(self.plan, extent.row_of, num_batches)
        self.room = self.layout.room(extent.edge_room, extent.node_room, num_batches)
        """Of samples that get memory before their sizes are known."""
        if self.plan.device.type == "cuda":
            self._capture()

    def _capture(self) -> None:
        """Compile, launch once without seeds, then record the launch and its end."""
        kernels, host, device = self.kernels, self.host, self.plan.device
        memory, stamp = self.begin_head()
        memory[: host.head_size] = 0
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
        torch.cuda.current_stream(device).synchronize()  # the first launch reads the head, which changes now

    def begin_head(self) -> tuple[Ints, int]:
        """The memory of what the host tells a launch, as numpy, and the stamp of the launch."""
        self._stamp += 1
        if self._stamp >= 1 << self.extent.stamp_bits:
            self.kernels.memory.hash_table.zero_()
            self._stamp = 1
        host = self.host
        host.failed_array.fill(0)
        self._turn ^= 1
        return host.head_array, self._stamp

    def __del__(self) -> None:
        """Wait for the GPU, which reads host memory that is about to be used for something else."""
        if getattr(self, "_launched", None) is not None and self.stream is not None and not sys.is_finalizing():
            self.stream.synchronize()

    def move_to(self, stream: torch.cuda.Stream | None) -> Workspace:
        """Use it on another stream from now on."""
        if stream is not None and self.stream is not None:
            stream.wait_stream(self.stream)
        self.stream = stream
        return self

    def launch(self, addresses: list[int] | None = None) -> None:
        """Sample what the head says, on the current stream, which is that of the workspace.

        Args:
            addresses: as for :meth:`finish`, to do that at once.
        """
        if addresses is not None:
            self.host.out_array[: len(addresses)] = addresses
        if self.stream is None or self._launched is None:
            (self.kernels.run if addresses is None else self.kernels.run_and_write)()
        else:
            (self._graph if addresses is None else self._whole).launch(self.stream)
            self._launched.record(self.stream)

    def wait(self) -> Told:
        """Wait for a launch, and for nothing behind it."""
        if self._launched is not None:
            self._launched.synchronize()
        host = self.host
        return Told.read(host.node_counts, host.result_counts, host.failed_array)

    def needed(self) -> tuple[Ints, Ints]:
        """The largest counts of the batches of a launch, like those of a capacity."""
        hops, batches, host = self.plan.num_hops + 1, self.shape.num_batches, self.host
        return host.node_counts.reshape(hops, batches, -1).max(1), host.edge_counts[:, self.extent.row_of].max(1)

    def finish(self, addresses: list[int]) -> None:
        """Write the results of the launch, on the current stream.

        Args:
            addresses: of the memory that batches share for their results.
        """
        turn, host = self._turn, self.host
        host.out_arrays[turn][: len(addresses)] = addresses
        if self.stream is None:
            self.kernels.write(host.outs[turn])
        else:
            self._ends[turn].launch(self.stream)
