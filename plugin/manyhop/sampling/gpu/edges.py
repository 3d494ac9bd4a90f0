"""Sampling around seed edges on the GPU, of one type or several: equal to ``EdgeSampler`` and ``sample_together``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import CSC, EdgeType, Graph, NodeType
from manyhop.sampling.check import check_seed_edges
from manyhop.sampling.contract import (
    EdgeRequest,
    NodeRequest,
    Pending,
    SampledEdges,
    SampledSubgraph,
    Sampler,
)
from manyhop.sampling.gpu.edge_launch import Candidates, Ints, Launch, Layout
from manyhop.sampling.gpu.kernels import negatives as kernels
from manyhop.sampling.gpu.lookup import GPUEdgeLookup
from manyhop.sampling.gpu.transfer import Readback, kernel_device, upload
from manyhop.sampling.lookup import EdgeLookup
from manyhop.sampling.negatives import choose_negatives, key_of_kind
from manyhop.sampling.seed_edges import EdgeSampler, check_trees
from manyhop.system.triton_launch import current_stream, on_stream

_TILE = 128
_LONG_TILE = 1024
_NUM_BAD, _NUM_LEFT, _COUNTS = 0, 1, 2


class GPUEdgeSampler(EdgeSampler):
    """:class:`manyhop.sampling.EdgeSampler` on the GPU: the same results, bit for bit, with all tensors on the device.

    A few launches serve multiple batches. If not disjoint, ``begin`` waits once for the numbers of unique endpoints; if
    disjoint, nothing waits before ``finish``.

    Args:
        sampler: samples around nodes, with results on ``device``, by its ``begin`` if it has one.
        graph: the topology that ``sampler`` samples from.
        edge_type: type of the seed edges.
        device: where to draw negatives and store results.
        **options: as of ``EdgeSampler``.

    Raises:
        InputError: the arguments contradict each other or do not fit the graph, or the device is no GPU.
        CapacityError: the tables of negatives do not fit in the memory of the device.
    """

    def __init__(
        self, sampler: Sampler, graph: Graph, edge_type: EdgeType, *, device: torch.device | str, **options: Any
    ) -> None:
        self.device = kernel_device(device, "EdgeSampler")
        self._edges: GPUEdgeLookup | None = None
        super().__init__(sampler, graph, edge_type, **options)
        negatives, disjoint, src, dst = self.negatives, self.disjoint, self._src_table, self._dst_table
        self._src = Candidates(src, graph.num_nodes[edge_type[0]], self.device)
        self._dst = Candidates(dst, graph.num_nodes[edge_type[2]], self.device)
        about = [*self._src.about, *self._dst.about, 0, 0]
        if self._edges is not None:
            about[-2:] = self._edges.begin.data_ptr(), self._edges.destination.data_ptr()
        self._about = torch.tensor(about, dtype=torch.int64, device=self.device)
        most_nodes = max(graph.num_nodes[edge_type[0]], graph.num_nodes[edge_type[2]])
        self._wide = disjoint or most_nodes >= 2**31
        self._modes = {
            "BINARY": negatives is not None and negatives.mode == "binary",
            "TRIPLET": negatives is not None and negatives.mode == "triplet",
            "GIVEN": negatives is not None and negatives.given,
            "EXCLUDE": self._edges is not None,
            "EDGES_WIDE": self._edges is not None and self._edges.destination.dtype == torch.int64,
            "DISJOINT": disjoint,
            "SRC_SORTED": self._src.sorted,
            "SRC_WEIGHTED": self._src.weighted,
            "DST_SORTED": self._dst.sorted,
            "DST_WEIGHTED": self._dst.weighted,
        }
        if (stream := current_stream(self.device)) is not None:
            stream.synchronize()  # other streams read the tables

    def _lookup(self, csc: CSC) -> EdgeLookup:
        self._edges = GPUEdgeLookup(csc, self.device)
        return self._edges

    def sample(self, request: EdgeRequest) -> SampledEdges:
        """Sample around the endpoints of ``request`` and of the negatives drawn for it.

        Raises:
            InputError: the request does not fit the graph or the sampler, or there is no negative to draw.
        """
        (((sampled,), _),) = self.begin([request]).finish()
        return sampled

    def begin(self, requests: Sequence[EdgeRequest]) -> PendingEdges:
        """Enqueue the sampling of multiple batches of this type; see :class:`PendingEdges`."""
        return PendingEdges([self], [[request] for request in requests])

    def check_each(self, requests: Sequence[EdgeRequest], *, in_range: bool = True) -> None:
        """Raise InputError if a request does not fit the graph or the sampler; the range of ids is optional."""
        for request in requests:
            check_seed_edges(
                self.graph, self.edge_type, request, self.negatives, disjoint=self.disjoint, in_range=in_range
            )


class PendingEdges:
    """Batches of seed edges in flight, enqueued on the current stream.

    Args:
        samplers: one per edge type, over the same engine, on one device.
        batches: for each batch one request per edge type, with the same key, and tensors on the CPU or on the device;
            the first names the edges that the sample must not have.

    Raises:
        InputError: a request does not fit the graph or its sampler, or there is no negative to draw.
    """

    def __init__(self, samplers: Sequence[GPUEdgeSampler], batches: Sequence[Sequence[EdgeRequest]]) -> None:
        if not batches:
            raise InputError("Expected at least one request, got none.")
        self._samplers, self._batches, self._disjoint = samplers, batches, samplers[0].disjoint
        for sampler, requests in zip(samplers, zip(*batches, strict=True), strict=True):
            sampler.check_each(requests, in_range=False)  # ranges are checked by the kernel
            for name in ("time_max", "time_min"):
                if len({getattr(request, name) is None for request in requests}) > 1:
                    raise InputError(f"Expected {name} with all of the requests of one call, or with none.")
        self._stream = current_stream(samplers[0].device)
        with on_stream(self._stream):
            self._ends = Endpoints(samplers, batches)
            if not self._disjoint:
                self._ends.repair()
            self._pending = self._begin_nodes()

    def finish(self) -> list[tuple[list[SampledEdges], Tensor | None]]:
        """Wait for the device's counts, and return the result of ``sample_together`` for each batch.

        Raises:
            InputError: a request does not fit the graph or the sampler, there is no negative to draw, or the engine
                keeps other trees than a sampler.
        """
        with on_stream(self._stream):
            if self._disjoint and self._ends.repair():
                self._pending = self._begin_nodes()
            trees: Sequence[Tensor | None] = [None] * len(self._batches)
            if self._disjoint:
                edges = [self._ends.layout.seed_edges(b) for b in range(len(self._batches))]
                trees = upload(edges, self._samplers[0].device)
            return [
                ([self._result(b, i, subgraph) for i in range(len(self._samplers))], trees[b])
                for b, subgraph in enumerate(self._pending())
            ]

    def _begin_nodes(self) -> Callable[[], list[SampledSubgraph]]:
        """Enqueue the sampling around the endpoints. Return the function that finishes it."""
        ends, requests = self._ends, []
        launch, lengths = ends.launch, ends.layout.lengths
        for b, (request, *_) in enumerate(self._batches):
            requests.append(
                NodeRequest(
                    key=request.key,
                    seeds=self._by_type(b, launch.unique, ends.counts),
                    time_max=None if request.time_max is None else self._by_type(b, launch.out_max, lengths),
                    time_min=None if request.time_min is None else self._by_type(b, launch.out_min, lengths),
                    exclude=request.exclude,
                )
            )
        sampler = self._samplers[0].sampler
        begin: Callable[[list[NodeRequest]], Pending] | None = getattr(sampler, "begin", None)
        if begin is None:
            return lambda: [sampler.sample(request) for request in requests]
        return begin(requests).finish

    def _by_type(self, b: int, rows: Tensor, counts: Sequence[int]) -> dict[NodeType, Tensor]:
        """Return the rows of a batch by node type, each cut to its count."""
        layout = self._ends.layout
        first, pitch = b * len(layout.types), layout.pitch
        return {t: rows.narrow(0, r * pitch, counts[r]) for r, t in enumerate(layout.types, first)}

    def _result(self, b: int, i: int, subgraph: SampledSubgraph) -> SampledEdges:
        check_trees(subgraph, disjoint=self._disjoint)
        launch, part, negatives = self._ends.launch, self._ends.layout.parts[i][b], self._samplers[i].negatives
        num_dst, drawn = part.num_dst, None
        if negatives is not None and negatives.mode == "triplet":
            num_dst = part.num_pos
            drawn = launch.index.narrow(0, part.dst_at + num_dst, part.num_neg).view(num_dst, int(negatives.amount))
        timed = self._batches[b][i].time_max is not None
        return SampledEdges(
            subgraph=subgraph,
            src_index=launch.index.narrow(0, part.src_at, part.num_src),
            dst_index=launch.index.narrow(0, part.dst_at, num_dst),
            dst_neg_index=drawn,
            num_pos=part.num_pos,
            time_max=launch.out_max.narrow(0, part.src_at, part.num_src) if timed else None,
        )


class Endpoints:
    """Endpoints of seed edges and of their negatives, for multiple batches; drawn on the current stream.

    Unless disjoint, the distinct endpoints of each batch are also found.

    Args:
        samplers: draw the negatives, one per edge type.
        batches: for each batch one request per edge type.
    """

    def __init__(self, samplers: Sequence[GPUEdgeSampler], batches: Sequence[Sequence[EdgeRequest]]) -> None:
        self._samplers, self._requests = samplers, list(zip(*batches, strict=True))
        sizes = [[request.src.numel() for request in requests] for requests in self._requests]
        self.layout = Layout([(s.edge_type, s.negatives) for s in samplers], sizes)
        self._unique = not samplers[0].disjoint
        self.counts = self.layout.lengths
        """Number of distinct endpoints of each row, if these are found, after :meth:`repair`."""
        wide = any(sampler._wide for sampler in samplers)
        self.launch = Launch(
            self.layout,
            self._requests,
            samplers[0].device,
            wide=wide,
            disjoint=not self._unique,
            exclude=any(sampler._edges is not None for sampler in samplers),
        )
        for i, (sampler, requests) in enumerate(zip(samplers, self._requests, strict=True)):
            longest = max(part.num_dst for part in self.layout.parts[i])
            if longest > 0:
                kernels.draw_endpoints[(-(-longest // _TILE), len(batches))](
                    sampler._about, self.launch.descriptor, i * len(batches),
                    LIMITS=requests[0].time_max is not None, WINDOW=requests[0].time_min is not None,
                    OUT_WIDE=wide, T=_TILE, **sampler._modes,
                )  # fmt: skip
        if self._unique:
            self._number()
        self._late = Readback(self.launch.state)

    def repair(self) -> bool:
        """Wait for the counts; raise for bad ids. Draw failed negatives exactly, and return whether there were any."""
        state = self._late.wait().tolist()
        if state[_NUM_BAD]:
            for sampler, requests in zip(self._samplers, self._requests, strict=True):
                sampler.check_each(requests)
        changed: bool = state[_NUM_LEFT] > 0
        if changed:
            failed = self.launch.failed.cpu().numpy().reshape(-1, self.layout.pitch)
            for i, parts in enumerate(self.layout.parts):
                for b, part in enumerate(parts):
                    todo = np.flatnonzero(failed[i * len(parts) + b, : part.num_neg])
                    if self._samplers[i]._edges is not None and todo.size:
                        self._choose(i, b, todo)
            if self._unique:
                self._number()
                state = self.launch.state.tolist()
        if self._unique:
            self.counts = state[_COUNTS:]
        return changed

    def _choose(self, i: int, b: int, todo: Ints) -> None:
        """Draw negatives ``todo`` of a type and batch with the exact code of the CPU."""
        sampler, request, part = self._samplers[i], self._requests[i][b], self.layout.parts[i][b]
        avoid, src, dst, num_pos = sampler.avoid, sampler._src_table, sampler._dst_table, part.num_pos
        assert avoid is not None
        assert dst is not None
        time = None if request.time_max is None else request.time_max.cpu().numpy()[todo % num_pos]
        sources = request.src.cpu().numpy()[todo % num_pos] if src is None else src
        s, d = choose_negatives(key_of_kind(request.key, i), sources, dst, part.num_neg, todo, time, avoid)
        out, place = self.launch.out, todo
        if src is not None:
            out[torch.from_numpy(part.src_at + num_pos + todo).to(out.device)] = torch.from_numpy(s).to(out)
        elif self._unique:  # as in the result, [num_pos, amount]
            place = todo % num_pos * (part.num_neg // num_pos) + todo // num_pos
        out[torch.from_numpy(part.dst_at + num_pos + place).to(out.device)] = torch.from_numpy(d).to(out)

    def _number(self) -> None:
        """Sort the endpoints of each row, remove duplicates, and compute the local id of each endpoint."""
        layout, launch = self.layout, self.launch
        value, order = torch.sort(launch.out.view(-1, layout.pitch), dim=1)
        kernels.number_endpoints[(len(layout.lengths),)](launch.descriptor, value, order, T=_LONG_TILE)
