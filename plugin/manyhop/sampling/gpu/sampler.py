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
from manyhop.sampling.gpu.launch.plan import Plan, Shape
from manyhop.sampling.gpu.launch.pool import Launch, Pool
from manyhop.sampling.gpu.launch.seeds import SeedGroup
from manyhop.sampling.gpu.launch.sequence import KernelSequence
from manyhop.sampling.gpu.transfer import current_stream, kernel_device, on_stream

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
