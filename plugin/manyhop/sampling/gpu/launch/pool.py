"""Batches on their way through a workspace, and the samples that come out."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from manyhop.errors import CapacityError
from manyhop.sampling.check import check_request
from manyhop.sampling.contract import NodeRequest, SampledSubgraph
from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.launch.capacity import Capacity, Shape, first_guess, worst_case
from manyhop.sampling.gpu.launch.head import tell
from manyhop.sampling.gpu.launch.plan import Plan
from manyhop.sampling.gpu.launch.results import Results, Told
from manyhop.sampling.gpu.launch.seeds import SeedGroup
from manyhop.sampling.gpu.launch.sequence import KernelSequence
from manyhop.sampling.gpu.launch.workspace import Workspace

_MOST_EDGES = (1 << 31) - 1
SNUG = 0.5  # of the room is filled: samples may have all of it, which spares the GPU a wait for the host
_MOST_AHEAD = 1 << 24  # edges and nodes: samples of more get no more than they need


class Pool:
    """The workspaces of one shape, and what is known about their capacity."""

    def __init__(self, plan: Plan, shape: Shape, kernels: type[KernelSequence]) -> None:
        self.plan, self.shape, self._kernels = plan, shape, kernels
        self._bound = worst_case(plan.graph, plan.spec, shape)
        guess = first_guess(plan.graph, plan.guess, shape)
        self._capacity = Capacity.learned(guess.nodes, guess.edges, self._bound)
        self._learned = False
        self._filled = 0.0
        self._under_way = 0
        self._free: list[Workspace] = []
        self._lock = threading.Lock()

    def acquire(self, stream: torch.cuda.Stream | None) -> Workspace:
        """A workspace for use on a stream.

        Raises:
            CapacityError: a new one does not fit into the device's memory, or its nodes into a table.
        """
        with self._lock:
            capacity, workspace = self._capacity, self._take(stream)
            if workspace is not None:
                self._under_way += 1
                return workspace
        workspace = self._make(capacity, stream)
        with self._lock:
            self._under_way += 1
        return workspace

    def _take(self, stream: torch.cuda.Stream | None) -> Workspace | None:
        for i, workspace in enumerate(reversed(self._free)):
            if workspace.stream is stream:
                return self._free.pop(~i)
        return self._free.pop(0).move_to(stream) if self._free else None

    def _make(self, capacity: Capacity, stream: torch.cuda.Stream | None) -> Workspace:
        try:
            with torch.inference_mode(False):  # its tensors are written to in any mode
                return Workspace(self._kernels(self.plan, self.shape, capacity), stream)
        except torch.OutOfMemoryError as error:
            raise CapacityError(
                f"The memory of {self.plan.device} has no room to sample {self.shape.num_batches} batches of up to "
                f"{sum(self.shape.seeds)} seeds at a time. Use smaller fan-outs or batches, or keep other data "
                "elsewhere."
            ) from error

    def release(self, workspace: Workspace) -> None:
        """Give a workspace back, for use after what is enqueued on its stream."""
        with self._lock:
            self._under_way -= 1
            if workspace.capacity is self._capacity:
                self._free.append(workspace)

    @property
    def is_busy(self) -> bool:
        """Whether there are other launches than one that has just got its workspace."""
        return self._under_way > 1

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

    def results_ahead(self, workspace: Workspace, num_batches: int) -> Results | None:
        """Memory for the samples of a launch whose sizes are not known yet, so that the GPU need not wait for the host.

        ``None`` where much of it would be left over, as far as the last launch tells, or where there is none.
        """
        if self._filled < SNUG or num_batches < self.shape.num_batches or workspace.extent.num_rows == 0:
            return None
        try:
            return Results(workspace.layout, workspace.room, num_batches, self.plan.device)
        except torch.OutOfMemoryError:
            return None

    def note(self, workspace: Workspace, told: Told) -> None:
        """Note how much of its room a launch filled."""
        room = workspace.num_rooms
        self._filled = 0.0 if room > _MOST_AHEAD else (sum(told.num_edges) + sum(told.num_nodes)) / max(room, 1)


class Launch:
    """Batches whose sampling is enqueued on a stream, the current one, in one launch."""

    def __init__(self, pool: Pool, requests: Sequence[NodeRequest], stream: torch.cuda.Stream | None) -> None:
        self._workspace: Workspace | None = None
        self._pool, self._requests, self._stream = pool, requests, stream
        self._begin()

    def _begin(self) -> None:
        workspace = self._pool.acquire(self._stream)
        requests = self._requests
        self._keep = requests.fill(workspace) if type(requests) is SeedGroup else tell(workspace, requests)
        # Where the GPU has another launch to do, one graph is best; else it is to begin as soon as possible.
        busy = self._pool.is_busy
        self._results = self._pool.results_ahead(workspace, len(requests)) if busy else None
        workspace.launch(None if self._results is None else self._results.addresses)
        self._workspace = workspace
        if not busy:
            self._results = self._pool.results_ahead(workspace, len(requests))
            if self._results is not None:
                workspace.finish(self._results.addresses)

    def finish(self) -> list[SampledSubgraph]:
        """The samples (directional ones), on the same stream; waits for their sizes.

        Raises:
            InputError: a seed is no node of the graph.
            CapacityError: the batches do not fit into a launch.
        """
        while True:
            workspace = self._workspace
            assert workspace is not None, "a launch is finished once"
            told = workspace.wait()
            if not any(told.failed):
                break
            if told.failed[t.BAD_SEED.value]:
                self.give_back()
                for request in self._requests:
                    check_request(self._pool.plan.graph, self._pool.plan.spec, request)
            self._pool.learn(workspace, failed=True)
            self.give_back()
            if max(told.num_nodes + told.num_edges) >= _MOST_EDGES:
                raise CapacityError("A batch has 2^31 or more edges of a type. Use smaller fan-outs or batches.")
            self._begin()
        try:
            results = self._results
            if results is None:
                num = len(self._requests)
                room = workspace.layout.room(told.num_edges, told.num_nodes, num)
                results = Results(workspace.layout, room, num, self._pool.plan.device)
                workspace.finish(results.addresses)
            self._pool.note(workspace, told)
            samples = results.cut(told)
            if workspace.plan.weighs:
                for sample, rows in zip(samples, workspace.extent.row_of, strict=False):
                    sample.__dict__["edge_weight"] = workspace.kernels.edge_weights(rows, told.num_edges)
            return samples
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
