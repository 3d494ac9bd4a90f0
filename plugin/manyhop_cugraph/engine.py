"""The engine that samples with cuGraph: batches of a group in one call, of all ranks together.

It uses cuGraph's random numbers and otherwise follows the contract; docs/scale/cugraph.md lists the differences.
"""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from manyhop.errors import InputError
from manyhop.graph import NodeType
from manyhop.ranks.world import current_rank
from manyhop.sampling.check import check_request, check_spec
from manyhop.sampling.contract import NeighborSpec, NodeRequest, SampledSubgraph, add_reverses, num_hops
from manyhop.sampling.gpu.launch.seeds import SeedGroup
from manyhop.sampling.random import Use, make_key
from manyhop_cugraph import binding
from manyhop_cugraph.batches import SampledEdgeList, Seeds, decode, gather_seeds, join_seeds, split_edges
from manyhop_cugraph.binding import Mark, on_stream, to_array, to_tensor
from manyhop_cugraph.graph import SpreadGraph
from manyhop_cugraph.scheduler import Submission, scheduler

EDGES_PER_CALL = 1 << 25
"""At most this many edges are sampled for a rank by one call, by the fanouts."""

_ALL = 32  # neighbours that a fanout of -1 counts as
_INSTEAD = "Use another engine: engine=None with placement='sharded' or 'pinned-cuda'."


@dataclass(frozen=True)
class _Work:
    """The seeds of batches that are sampled by one call."""

    seeds: Seeds
    size: int
    """Number of seeds."""
    state: int
    """Begin of the call's random state, if this is its first work."""
    ready: Mark
    """Marks the end of the seeds' transfer."""


class CuGraphSampler:
    """Samples neighbours in a graph that is spread over the GPUs of all ranks, which call it in step.

    Args:
        graph: the topology, spread.
        spec: how to sample, equal for all requests and ranks.

    Raises:
        InputError: the spec does not fit the graph, or is not supported by cuGraph.
    """

    collective = True

    def __init__(self, graph: SpreadGraph, spec: NeighborSpec) -> None:
        check_spec(graph.graph, spec)
        check_supported(graph, spec)
        self.graph, self.spec, self.device = graph, spec, graph.device
        self._hops = num_hops(spec.fanouts)
        self._fanouts = [spec.fanouts[t][hop] for hop in range(self._hops) for t in graph.graph.edge_types]
        first = self._fanouts[: len(graph.graph.edge_types)] if spec.expand == "new" else self._fanouts
        self.asks = any(first)  # cuGraph rejects calls without fanouts
        self._calls = itertools.count()
        self.name = 1 + zlib.crc32(f"{graph.number} {spec!r}".encode())
        """Identifier of the graph and the spec, equal on all ranks."""
        self.title = f"a sample by fanouts {', '.join(dict.fromkeys(str(list(fan)) for fan in spec.fanouts.values()))}"
        self.capacity = max(1, EDGES_PER_CALL // max(1, *map(self._edges_around, graph.numbering.node_types)))
        """Number of seeds of a call, at most: it bounds the edges."""
        self.request_size = self.capacity // 2
        """Number of seeds that a loader requests at once. A call can then also serve its next request, or another's."""
        self.scheduler = scheduler(timeout=graph.timeout)
        self.scheduler.add(self)

    def sample(self, request: NodeRequest) -> SampledSubgraph:
        """Sample around ``request.seeds``. All ranks call it, or :meth:`begin`."""
        return self.begin([request]).finish()[0]

    def begin(self, requests: Sequence[NodeRequest]) -> Pending:
        """Submit several batches, which are sampled when they or others of the same engine are needed.

        Args:
            requests: the batches, with tensors on the CPU or on the device.
        """
        if not requests:
            raise InputError("Expected at least one request, got none.")
        every: list[Seeds] = []
        works: list[_Work] = []
        error: InputError | None = None
        for group in self._groups(requests):
            try:  # other ranks wait for this one
                self._check(group)
                seeds = gather_seeds(group, self.graph.numbering, self.device, disjoint=self.spec.disjoint)
            except InputError as wrong:
                error = error or wrong
                seeds = self._none(len(group))
            every.append(seeds)
            if self.asks and (size := seeds.key.numel()):
                key = group.keys[0] if isinstance(group, SeedGroup) else group[0].key
                works.append(_Work(seeds, size, int(make_key(Use.NEIGHBOR, *key)), Mark(self.device)))
        return Pending(self, works, every, error)

    def _groups(self, requests: Sequence[NodeRequest]) -> list[Sequence[NodeRequest]]:
        """Cut requests into calls of bounded size."""
        if isinstance(requests, SeedGroup):
            sizes = list(requests.sizes)
        else:
            sizes = [sum(seeds.numel() for seeds in request.seeds.values()) for request in requests]
        groups, begin, total = [], 0, 0
        for i, size in enumerate(sizes):
            if i > begin and total + size > self.capacity:
                groups.append(requests[begin:i])
                begin, total = i, 0
            total += size
        return [*groups, requests[begin:]]

    def _edges_around(self, seed_type: NodeType) -> int:
        """Return how many edges are sampled around a seed of a type at most, by the fanouts."""
        total, frontier = 0, Counter({seed_type: 1})
        for hop in range(self._hops):
            reached: Counter[NodeType] = Counter() if self.spec.expand == "new" else Counter(frontier)
            for (src, _, dst), fanout in self.spec.fanouts.items():
                count = frontier[dst] * (fanout[hop] if fanout[hop] >= 0 else _ALL)
                reached[src] += count
                total += count
            frontier = reached
        return total

    def _check(self, requests: Sequence[NodeRequest]) -> None:
        graph = self.graph.graph
        for request in [requests.whole()] if isinstance(requests, SeedGroup) else requests:
            check_request(graph, self.spec, request)
            if request.exclude is not None:
                raise InputError(f"Expected no edges to exclude, which cuGraph cannot leave out, got some. {_INSTEAD}")

    def _none(self, num_batches: int) -> Seeds:
        """Return batches without seeds, for a rank that only joins a call of other ranks."""
        none = torch.empty(0, dtype=torch.int64, device=self.device)
        every, times = (
            torch.arange(num_batches, device=self.device),
            None if self.spec.temporal is None else (none, none),
        )
        return Seeds(none, none, none if self.spec.disjoint else every, torch.zeros_like(every), times)

    def call(self, works: Sequence[_Work]) -> list[tuple[SampledEdgeList, Mark]]:
        """Call cuGraph for the seeds of some batches; see :class:`scheduler.Caller`. Marks are the ends of results."""
        number, state = next(self._calls), works[0].state if works else 0
        graph, spec, plc = self.graph, self.spec, binding.pylibcugraph()
        with on_stream(graph.handle.stream):
            for work in works:
                work.ready.wait(work.seeds.tensors())
            seeds = join_seeds([work.seeds for work in works], graph.numbering) if works else self._none(1)
            vertex = (seeds.unique % graph.numbering.num_vertices).to(graph.id_dtype)
            found = plc.neighbor_sample(
                graph.handle.resources,
                graph.native,
                to_array(vertex),
                np.array(self._fanouts, dtype=np.int32),
                starting_vertex_label_offsets=to_array(seeds.offsets(graph.numbering)),
                num_edge_types=len(graph.numbering.edge_types),
                with_replacement=spec.replace,
                do_expensive_check=False,
                prior_sources_behavior="exclude" if spec.expand == "new" else "carryover",
                deduplicate_sources=True,
                return_hops=True,
                renumber=False,
                compression="COO",
                use_edge_weights_as_biases=spec.weighted,
                random_state=int(make_key(Use.NEIGHBOR, state, number, current_rank())) >> 1,
                **self._times(seeds),
            )
            edges = self._edges(found, seeds)
            parts = split_edges(edges, [work.seeds.num_labels for work in works]) if works else []
            ready = Mark(self.device)
        return [(part, ready) for part in parts]

    def _times(self, seeds: Seeds) -> dict[str, Any]:
        """Return the arguments of temporal sampling: each seed keeps its window at all hops."""
        if seeds.time is None:
            return {}
        earliest, latest = map(to_array, seeds.time)
        return {
            "starting_vertex_start_times": earliest,
            "starting_vertex_end_times": latest,
            "temporal_sampling_comparison": "monotonically_increasing",
            "fixed_window": True,
            "disjoint_sampling": True,
            "neighbor_selection": "last" if self.spec.temporal == "last" else "random",
        }

    def _edges(self, found: dict[str, Any], seeds: Seeds) -> SampledEdgeList:
        """Return the result of a call as tensors in torch's memory."""
        several = len(self.graph.numbering.edge_types) > 1
        names = ["majors", "minors", "edge_id", *["edge_type"] * several]
        # Copied, since cuGraph's memory is freed on its stream.
        columns = [to_tensor(found[name], self.device).to(torch.int64, copy=True) for name in names]
        if not columns[0].numel():
            return self.no_edges(seeds)
        # There are as many offsets for each label as there are fanouts.
        offsets = to_tensor(found["label_hop_offsets"], self.device).to(torch.int64)
        counts = torch.diff(offsets).view(seeds.num_labels, -1)[:, : self._hops].contiguous()
        frontier, neighbor, edge_id, *types = columns
        return SampledEdgeList(frontier, neighbor, edge_id, types[0] if several else None, counts)

    def no_edges(self, seeds: Seeds) -> SampledEdgeList:
        """Return the edges around seeds that no call is needed for."""
        none = torch.empty(0, dtype=torch.int64, device=self.device)
        counts = torch.zeros(seeds.num_labels, self._hops, dtype=torch.int64, device=self.device)
        return SampledEdgeList(none, none, none, none if len(self.graph.numbering.edge_types) > 1 else None, counts)


class Pending(Submission):
    """Batches that wait for cuGraph; created by :meth:`CuGraphSampler.begin`. Dropping it withdraws them."""

    def __init__(
        self, sampler: CuGraphSampler, works: list[_Work], seeds: list[Seeds], error: InputError | None
    ) -> None:
        super().__init__(sampler.scheduler, sampler, works)
        self._sampler, self._seeds, self._error = sampler, seeds, error

    def finish(self) -> list[SampledSubgraph]:
        """Return one sample per request, in their order, on the sampler's device, and wait for it. Call it once.

        If they are not sampled yet, all ranks sample together in this call.

        Raises:
            RankError: a rank did not arrive in time.
            InputError: a request does not fit the graph or the spec.
        """
        found = iter(self.results())
        if self._error is not None:
            raise self._error
        self.outcome = []  # frees the edges with the last sample
        numbering, spec, samples = self._sampler.graph.numbering, self._sampler.spec, []
        for seeds in self._seeds:
            edges = self._sampler.no_edges(seeds)
            if self._sampler.asks and seeds.key.numel():
                edges, ready = next(found)
                ready.wait(edges.tensors())
            samples += decode(edges, seeds, numbering, disjoint=spec.disjoint)
        return samples if spec.reverse is None else add_reverses(samples, spec.reverse)


def check_supported(graph: SpreadGraph, spec: NeighborSpec) -> None:
    """Raise InputError if cuGraph does not support a spec."""
    if not any(spec.fanouts.values()):
        raise InputError(f"Expected at least one hop with cuGraph, got none. {_INSTEAD}")
    if spec.subgraph == "induced":
        raise InputError(f"Expected subgraph 'directional' or 'bidirectional' with cuGraph, got 'induced'. {_INSTEAD}")
    if graph.drops_edges and not spec.weighted:
        raise InputError(
            "Expected weighted sampling with cuGraph of a graph with edges of weight 0, as these are omitted, "
            f"got weighted=False. {_INSTEAD}"
        )
    if spec.temporal is not None and not graph.has_times:
        raise InputError(f"Expected times of all edge types with cuGraph, got some without. {_INSTEAD}")
    if spec.temporal is not None and (spec.replace or spec.expand == "all"):
        raise InputError(
            "Expected temporal sampling without replacement around new nodes only with cuGraph, got "
            f"replace={spec.replace} and expand={spec.expand!r}. {_INSTEAD}"
        )
    if any(k >= np.iinfo(np.int32).max for fanout in spec.fanouts.values() for k in fanout):
        raise InputError("Expected fanouts below 2**31 with cuGraph. Use -1 for all neighbours.")
