"""The GPU backend of neighbour sampling: equal to the reference bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from manyhop.errors import CapacityError, InputError
from manyhop.graph import Graph
from manyhop.sampling.check import check_request, check_spec
from manyhop.sampling.contract import NeighborSpec, NodeRequest, SampledSubgraph, add_reverses
from manyhop.sampling.gpu.induced import Inducer, drop_excluded
from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.launch.plan import Capacity, Plan, Shape, first_guess, worst_case
from manyhop.sampling.gpu.launch.seeds import SeedGroup
from manyhop.sampling.gpu.launch.sequence import KernelSequence
from manyhop.sampling.gpu.launch.workspace import LaunchReport, Results, Workspace, write_descriptor
from manyhop.sampling.gpu.transfer import kernel_device
from manyhop.system.triton_launch import current_stream, on_stream

_MAX_EDGES = (1 << 31) - 1
MIN_FILL_RATIO = 0.5  # of a workspace's capacity: results are preallocated if launches fill at least this share of it
SMALL_RESULTS = 1 << 15  # nodes and edges: results up to this capacity are always preallocated
_MAX_PREALLOCATED = 1 << 24  # nodes and edges: larger results are allocated by their exact size
_SPARE = 4  # times the batches of a launch: capacity of its pool


class GPUSampler:
    """Sample neighbours on a GPU; safe to call from multiple threads and on several streams.

    The memory of a launch is sized from earlier batches; a launch that does not fit is repeated with more memory.

    Args:
        graph: the topology, in the memory of the device, in pinned host memory, or in mapped memory of other GPUs.
        spec: how to sample; identical for all requests.
        device: where to sample and store results.

    Raises:
        InputError: the spec does not fit the graph, the device is no GPU, or a request does not fit the spec.
        GraphError: the GPU cannot read the graph's memory, or the layout is not that of :class:`manyhop.graph.CSC`.
        CapacityError: a batch is too large for the memory or the tables of the sampler.
    """

    collective = False
    _kernels: type[KernelSequence] = KernelSequence

    def __init__(self, graph: Graph, spec: NeighborSpec, *, device: torch.device | str) -> None:
        check_spec(graph, spec)
        self.graph, self.spec = graph, spec
        self.device = kernel_device(device, "CPUSampler")
        self._plan = self._make_plan(spec)
        self._inducer = Inducer(graph, self.device) if spec.subgraph == "induced" else None
        self._lock = threading.Lock()
        self._pools: dict[Shape, Pool] = {}
        self._latest: tuple[object, Pool] | None = None  # what a launch needed, and its pool

    def _make_plan(self, spec: NeighborSpec) -> Plan:
        return Plan(self.graph, spec, self.device)

    def sample(self, request: NodeRequest) -> SampledSubgraph:
        """Sample around ``request.seeds``."""
        return self.begin([request]).finish()[0]

    def begin(self, requests: Sequence[NodeRequest]) -> Pending:
        """Enqueue the sampling of batches on the current stream, in one launch or, if they do not fit, several.

        Does not wait for the GPU.

        Args:
            requests: the batches, with tensors on the CPU or on the device.

        Raises:
            InputError: no requests, or one that does not fit the spec.
        """
        if not requests:
            raise InputError("Expected at least one request, got none.")
        for request in [requests.whole()] if type(requests) is SeedGroup else requests:
            check_request(self.graph, self.spec, request, in_range=False)
        return Pending(self, requests)

    def _launches(self, requests: Sequence[NodeRequest], stream: torch.cuda.Stream | None) -> list[Launch]:
        """Launch the batches at once; in halves if they do not fit."""
        try:
            return [Launch(self._pool(requests), requests, stream)]
        except CapacityError:
            if len(requests) == 1:
                raise
        half = len(requests) // 2
        return self._launches(requests[:half], stream) + self._launches(requests[half:], stream)

    def _pool(self, requests: Sequence[NodeRequest]) -> Pool:
        """Return the smallest pool that the batches fit in, of at most ``_SPARE`` times as many, or a new one."""
        most = dict.fromkeys(self._plan.types, 0)
        window = exclude = False
        if type(requests) is SeedGroup:
            most[requests.node_type] = max(requests.sizes)
        else:
            for request in requests:
                for name, seeds in request.seeds.items():
                    if seeds.shape[0] > most[name]:
                        most[name] = seeds.shape[0]
                window = window or request.time_min is not None
                exclude = exclude or request.exclude is not None
        num_batches, required = len(requests), tuple(most.values())
        asked, latest = (num_batches, required, window, exclude), self._latest
        if latest is not None and latest[0] == asked:
            return latest[1]
        own = tuple(-(-n // 64) * 64 for n in required)
        with self._lock:
            fitting = [
                pool
                for shape, pool in self._pools.items()
                if (shape.window, shape.exclude) == (window, exclude)
                and num_batches <= shape.num_batches <= _SPARE * num_batches
                and all(
                    n <= limit <= max(least, 8 * n, 4 * sum(required))
                    for n, least, limit in zip(required, own, shape.seeds, strict=True)
                )
            ]
            if fitting:
                pool = min(fitting, key=lambda pool: pool.shape.num_batches * sum(pool.shape.seeds))
            else:
                shape = Shape(num_batches, own, window, exclude)
                pool = self._pools[shape] = Pool(self._plan, shape, self._kernels)
        self._latest = asked, pool
        return pool


class Pending:
    """Batches in flight; created by :meth:`GPUSampler.begin`."""

    def __init__(self, sampler: GPUSampler, requests: Sequence[NodeRequest]) -> None:
        self._sampler, self._requests = sampler, requests
        self._stream = current_stream(sampler.device)
        with on_stream(self._stream):
            self._launches = sampler._launches(requests, self._stream)

    def finish(self) -> list[SampledSubgraph]:
        """Wait for the sizes of the samples, and enqueue the kernels that write them, on the stream of ``begin``.

        Returns:
            One sample per request, in their order, on the sampler's device.

        Raises:
            InputError: a seed is not a node of the graph.
            CapacityError: a batch is too large.
        """
        with on_stream(self._stream):
            samples, reverse, inducer = self._directional(), self._sampler.spec.reverse, self._sampler._inducer
            if inducer is not None:
                inducer.replace_edges(samples)
                drop_excluded(samples, self._requests)
            return samples if reverse is None else add_reverses(samples, reverse)

    def _directional(self) -> list[SampledSubgraph]:
        """Return the samples with the edges that were sampled, in one direction."""
        launches, self._launches = self._launches, []
        if not launches:
            raise InputError("These batches have been finished already. Call begin() for the next ones.")
        try:
            return [sample for launch in launches for sample in launch.finish()]
        except CapacityError:
            if len(self._requests) == 1:
                raise
        # Batches one by one: their sizes are known by now.
        return [sample for request in self._requests for sample in Pending(self._sampler, [request])._directional()]


class Launch:
    """Batches sampled by one launch, enqueued on ``stream``, which must be the current stream."""

    def __init__(self, pool: Pool, requests: Sequence[NodeRequest], stream: torch.cuda.Stream | None) -> None:
        self._workspace: Workspace | None = None
        self._pool, self._requests, self._stream = pool, requests, stream
        self._begin()

    def _begin(self) -> None:
        workspace = self._pool.acquire(self._stream)
        requests = self._requests
        self._keep = (
            requests.write_descriptor(workspace)
            if type(requests) is SeedGroup
            else write_descriptor(workspace, requests)
        )
        self._results = self._pool.preallocate_results(workspace, len(requests))
        workspace.launch(None if self._results is None else self._results.addresses)
        self._workspace = workspace

    def finish(self) -> list[SampledSubgraph]:
        """Return the samples (directional), written on the same stream; waits for their sizes.

        Raises:
            InputError: a seed is no node of the graph.
            CapacityError: the batches do not fit into a launch.
        """
        while True:
            workspace = self._workspace
            assert workspace is not None, "a launch is finished once"
            report = workspace.wait()
            if not any(report.failed):
                break
            if report.failed[t.BAD_SEED.value]:
                self.release_workspace()
                for request in self._requests:
                    check_request(self._pool.plan.graph, self._pool.plan.spec, request)
            self._pool.learn(workspace, failed=True)
            self.release_workspace()
            if max(report.num_nodes + report.num_edges) >= _MAX_EDGES:
                raise CapacityError("A batch has 2^31 or more edges of a type. Use smaller fanouts or batches.")
            self._begin()
        try:
            results = self._results
            if results is None:
                num = len(self._requests)
                sizes = workspace.layout.allocation_sizes(report.num_edges, report.num_nodes, num)
                results = Results(workspace.layout, sizes, num, self._pool.plan.device)
                workspace.finish(results.addresses)
            self._pool.observe(workspace, report)
            results.report = report
            if workspace.plan.weighs:
                segments = workspace.extent.segment_of[: len(self._requests)]
                results.weights = [workspace.kernels.edge_weights(own, report.num_edges) for own in segments]
            return results.cut()
        finally:
            self._pool.learn(workspace, failed=False)
            self.release_workspace()

    def release_workspace(self) -> None:
        """Return the workspace to the pool."""
        workspace, self._workspace = self._workspace, None
        if workspace is not None:
            self._pool.release(workspace)

    def __del__(self) -> None:
        if self._workspace is not None:
            self._workspace.wait()  # the next launch overwrites the descriptor, which this one may still read
            self.release_workspace()


class Pool:
    """The workspaces of one shape, and the capacity learned for them."""

    def __init__(self, plan: Plan, shape: Shape, kernels: type[KernelSequence]) -> None:
        self.plan, self.shape, self._kernels = plan, shape, kernels
        self._bound = worst_case(plan.graph, plan.spec, shape)
        guess = first_guess(plan.graph, plan.guess, shape)
        self._capacity = Capacity.learned(guess.nodes, guess.edges, self._bound)
        self._learned = False
        self._fill_ratio = 0.0
        self._free: list[Workspace] = []
        self._lock = threading.Lock()

    def acquire(self, stream: torch.cuda.Stream | None) -> Workspace:
        """Return a workspace for use on a stream: a free one, or a new one.

        Raises:
            CapacityError: a new workspace does not fit into the device's memory, or its nodes into a hash table.
        """
        with self._lock:
            capacity, workspace = self._capacity, self._take(stream)
        return self._make(capacity, stream) if workspace is None else workspace

    def _take(self, stream: torch.cuda.Stream | None) -> Workspace | None:
        for i, workspace in enumerate(reversed(self._free)):
            if workspace.stream == stream:
                return self._free.pop(~i)
        return self._free.pop(0).move_to(stream) if self._free else None

    def _make(self, capacity: Capacity, stream: torch.cuda.Stream | None) -> Workspace:
        try:
            with torch.inference_mode(False):  # its tensors are written to in any mode
                return Workspace(self._kernels(self.plan, self.shape, capacity), stream)
        except torch.OutOfMemoryError as error:
            raise CapacityError(
                f"The memory of {self.plan.device} has no room to sample {self.shape.num_batches} batches of up to "
                f"{sum(self.shape.seeds)} seeds at a time. Use smaller fanouts or batches, or keep other data "
                "elsewhere."
            ) from error

    def release(self, workspace: Workspace) -> None:
        """Return a workspace to the pool; its next launch runs after the work enqueued on its stream."""
        with self._lock:
            if workspace.capacity is self._capacity:
                self._free.append(workspace)

    def learn(self, workspace: Workspace, *, failed: bool) -> None:
        """Adapt the capacity to a launch that overflowed or was the first; drop the free workspaces if it changes."""
        if self._learned and not failed:
            return
        nodes, edges = workspace.required()
        with self._lock:
            if workspace.capacity is not self._capacity:
                return
            if failed:
                self._capacity = self._capacity.grown(nodes, edges, self._bound)
            else:
                self._capacity = Capacity.learned(nodes, edges, self._bound)
                self._learned = True
            self._free.clear()

    def preallocate_results(self, workspace: Workspace, num_batches: int) -> Results | None:
        """Allocate results before their sizes are known, so that the launch writes them without waiting for the host.

        Return ``None`` if the last launch filled little of a capacity that is not small, or if the device has too
        little memory.
        """
        filled = self._fill_ratio >= MIN_FILL_RATIO or workspace.total_capacity <= SMALL_RESULTS
        if not filled or num_batches != self.shape.num_batches or workspace.extent.num_segments == 0:
            return None
        try:
            return Results(workspace.layout, workspace.max_sizes, num_batches, self.plan.device)
        except torch.OutOfMemoryError:
            return None

    def observe(self, workspace: Workspace, report: LaunchReport) -> None:
        """Update the share of the capacity that launches fill."""
        capacity = workspace.total_capacity
        filled = sum(report.num_edges) + sum(report.num_nodes)
        self._fill_ratio = 0.0 if capacity > _MAX_PREALLOCATED else filled / max(capacity, 1)
