"""Sampling around seed edges on the GPU: negatives, endpoints and their local ids, equal to ``EdgeSampler``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import EdgeType, Graph, NodeType
from manyhop.sampling.check import check_edge_request, check_negatives, check_seed_edges
from manyhop.sampling.contract import (
    BatchKey,
    EdgeRequest,
    NegativeSpec,
    NeighborSpec,
    NodeRequest,
    Pending,
    SampledEdges,
    SampledSubgraph,
    Sampler,
)
from manyhop.sampling.gpu.edge_launch import Candidates, Ints, Launch, Layout
from manyhop.sampling.gpu.kernels import negatives as kernels
from manyhop.sampling.gpu.lookup import GPUEdgeLookup
from manyhop.sampling.gpu.transfer import Readback, current_stream, kernel_device, on_stream
from manyhop.sampling.negatives import NegativeTable, choose_negatives, key_of_kind
from manyhop.sampling.seed_edges import check_trees

_TILE = 128
_LONG_TILE = 1024
_NUM_BAD, _NUM_LEFT, _COUNTS = 0, 1, 2


class GPUEdgeSampler:
    """:class:`manyhop.sampling.EdgeSampler` on the GPU: the same results, bit for bit, with all tensors on the device.

    A few launches serve multiple batches. If not disjoint, ``begin`` waits once for the numbers of unique endpoints; if
    disjoint, nothing waits before ``finish``.

    Args:
        sampler: samples around nodes, with results on ``device``, by its ``begin`` if it has one.
        graph: the topology that ``sampler`` samples from.
        edge_type: type of the seed edges.
        negatives: which negatives to draw; ``None`` for none.
        src_weight: ``[num_nodes]``: sources of binary negatives are drawn in proportion to it; ``None``: uniformly.
        dst_weight: ``[num_nodes]``: weights of destinations.
        disjoint: whether ``sampler`` keeps one tree per seed.
        device: where to draw negatives and store results.

    Raises:
        InputError: the arguments contradict each other or do not fit the graph, or the device is no GPU.
        CapacityError: the tables of negatives do not fit in the memory of the device.
    """

    def __init__(
        self,
        sampler: Sampler,
        graph: Graph,
        edge_type: EdgeType,
        *,
        negatives: NegativeSpec | None = None,
        src_weight: Tensor | None = None,
        dst_weight: Tensor | None = None,
        disjoint: bool = False,
        device: torch.device | str,
    ) -> None:
        check_negatives(graph, edge_type, negatives, src_weight=src_weight, dst_weight=dst_weight)
        self.sampler = sampler
        self.graph = graph
        self.edge_type = edge_type
        self.negatives = negatives
        self.disjoint = disjoint
        self.device = kernel_device(device, "EdgeSampler")
        self._avoid: GPUEdgeLookup | None = None
        if negatives is not None and negatives.exclude_true:
            self._avoid = GPUEdgeLookup(graph.csc[edge_type], self.device)
        binary = negatives is not None and negatives.mode == "binary"
        self._src = self._candidates(edge_type[0], src_weight, drawn=binary)
        given = negatives is not None and negatives.given
        self._dst = self._candidates(edge_type[2], dst_weight, drawn=negatives is not None and not given)
        about = [*self._src.about, *self._dst.about, 0, 0]
        if self._avoid is not None:
            about[-2:] = self._avoid.begin.data_ptr(), self._avoid.destination.data_ptr()
        self._about = torch.tensor(about, dtype=torch.int64, device=self.device)
        most_nodes = max(graph.num_nodes[edge_type[0]], graph.num_nodes[edge_type[2]])
        self._wide = disjoint or most_nodes >= 2**31
        self._modes = {
            "BINARY": binary,
            "TRIPLET": negatives is not None and not binary,
            "GIVEN": given,
            "EXCLUDE": self._avoid is not None,
            "EDGES_WIDE": self._avoid is not None and self._avoid.destination.dtype == torch.int64,
            "DISJOINT": disjoint,
            "OUT_WIDE": self._wide,
            "SRC_SORTED": self._src.sorted,
            "SRC_WEIGHTED": self._src.weighted,
            "DST_SORTED": self._dst.sorted,
            "DST_WEIGHTED": self._dst.weighted,
        }
        if (stream := current_stream(self.device)) is not None:
            with on_stream(stream):
                self._warm_up()
            stream.synchronize()  # other streams read the tables

    def _candidates(self, node_type: NodeType, weight: Tensor | None, *, drawn: bool) -> Candidates:
        num_nodes, time = self.graph.num_nodes[node_type], self.graph.node_time.get(node_type)
        table = NegativeTable.build(num_nodes, weight, None if time is None else time.cpu()) if drawn else None
        return Candidates(table, num_nodes, self.device)

    def _warm_up(self) -> None:
        """Compile the kernels with a batch of one edge."""
        src_type, _, dst_type = self.edge_type
        if 0 in (self.graph.num_nodes[src_type], self.graph.num_nodes[dst_type]):
            return
        zero = torch.zeros(1, dtype=torch.int64)
        spec = getattr(self.sampler, "spec", None)
        time = zero if isinstance(spec, NeighborSpec) and spec.temporal is not None else None
        neg_dst = None
        if self.negatives is not None and self.negatives.given:
            neg_dst = torch.zeros(1, int(self.negatives.amount), dtype=torch.int64)
        request = EdgeRequest(
            key=BatchKey(0, 0, 0), edge_type=self.edge_type, src=zero, dst=zero, time_max=time, neg_dst=neg_dst
        )
        Endpoints(self, [request], unique=not self.disjoint)

    def sample(self, request: EdgeRequest) -> SampledEdges:
        """Sample around the endpoints of ``request`` and of the negatives drawn for it.

        Raises:
            InputError: the request does not fit the graph or the sampler, or there is no negative to draw.
        """
        return self.begin([request]).finish()[0]

    def begin(self, requests: Sequence[EdgeRequest]) -> PendingEdges:
        """Enqueue the sampling of multiple batches on the current stream.

        Args:
            requests: the batches, with tensors on the CPU or on the device.

        Raises:
            InputError: a request does not fit the graph or the sampler, or there is no negative to draw.
        """
        self.check(requests)
        return PendingEdges(self, requests)

    def check(self, requests: Sequence[EdgeRequest]) -> None:
        """Raise InputError if requests do not fit the graph, the sampler or each other, except for ranges of ids."""
        if not requests:
            raise InputError("Expected at least one request, got none.")
        for request in requests:
            check_seed_edges(  # ranges are checked by the kernel
                self.graph, self.edge_type, request, self.negatives, disjoint=self.disjoint, in_range=False
            )
        for name in ("time_max", "time_min"):
            if len({getattr(request, name) is None for request in requests}) > 1:
                raise InputError(f"Expected {name} with all of the requests of one call, or with none.")


class PendingEdges:
    """Batches of seed edges in flight; created by :meth:`GPUEdgeSampler.begin`."""

    def __init__(self, sampler: GPUEdgeSampler, requests: Sequence[EdgeRequest]) -> None:
        self._sampler = sampler
        self._requests = list(requests)
        self._stream = current_stream(sampler.device)
        with on_stream(self._stream):
            self._ends = Endpoints(sampler, self._requests, unique=not sampler.disjoint)
            if not sampler.disjoint:
                self._ends.repair()
            self._pending = self._begin_nodes()

    def finish(self) -> list[SampledEdges]:
        """Wait for the device's counts, and return the samples.

        Raises:
            InputError: a request does not fit the graph or the sampler, or there is no negative to draw.
        """
        with on_stream(self._stream):
            if self._sampler.disjoint and self._ends.repair():
                self._pending = self._begin_nodes()
            return [self._result(b, subgraph) for b, subgraph in enumerate(self._pending())]

    def _begin_nodes(self) -> Callable[[], list[SampledSubgraph]]:
        """Enqueue the sampling around the endpoints. Return the function that finishes it."""
        sampler, ends, requests = self._sampler, self._ends, []
        launch, lengths = ends.launch, ends.layout.lengths
        for b, request in enumerate(self._requests):
            requests.append(
                NodeRequest(
                    key=request.key,
                    seeds=self._by_type(b, launch.unique, ends.counts),
                    time_max=None if request.time_max is None else self._by_type(b, launch.out_max, lengths),
                    time_min=None if request.time_min is None else self._by_type(b, launch.out_min, lengths),
                    exclude=request.exclude,
                )
            )
        begin: Callable[[list[NodeRequest]], Pending] | None = getattr(sampler.sampler, "begin", None)
        if begin is None:
            return lambda: [sampler.sampler.sample(request) for request in requests]
        return begin(requests).finish

    def _by_type(self, b: int, rows: Tensor, counts: Sequence[int]) -> dict[NodeType, Tensor]:
        """Return the rows of a batch by node type, each cut to its count."""
        (src_type, _, dst_type), layout = self._sampler.edge_type, self._ends.layout
        pitch = layout.pitch
        if layout.joint:
            return {src_type: rows.narrow(0, b * pitch, counts[b])}
        src, dst = (rows.narrow(0, r * pitch, counts[r]) for r in (2 * b, 2 * b + 1))
        return {src_type: src, dst_type: dst}

    def _result(self, b: int, subgraph: SampledSubgraph) -> SampledEdges:
        sampler, layout, launch = self._sampler, self._ends.layout, self._ends.launch
        check_trees(subgraph, disjoint=sampler.disjoint)
        num_pos, num_src = layout.num_pos[b], layout.num_src[b]
        num_dst = num_pos if layout.triplet else layout.num_dst[b]
        src_at, dst_at = layout.ends(b)
        drawn = None
        if layout.triplet:
            drawn = launch.index.narrow(0, dst_at + num_pos, layout.num_neg[b]).view(num_pos, layout.amount)
        timed = self._requests[b].time_max is not None
        return SampledEdges(
            subgraph=subgraph,
            src_index=launch.index.narrow(0, src_at, num_src),
            dst_index=launch.index.narrow(0, dst_at, num_dst),
            dst_neg_index=drawn,
            num_pos=num_pos,
            time_max=launch.out_max.narrow(0, src_at, num_src) if timed else None,
        )


class Endpoints:
    """Endpoints of seed edges of one type and of their negatives, for multiple batches; drawn on the current stream.

    Args:
        sampler: draws the negatives.
        requests: the batches.
        unique: whether the distinct endpoints of each batch are also found.
        kind: number of the edge type among those of a batch.
    """

    def __init__(
        self, sampler: GPUEdgeSampler, requests: Sequence[EdgeRequest], *, unique: bool, kind: int = 0
    ) -> None:
        self._sampler, self._requests, self._unique, self._kind = sampler, requests, unique, kind
        src_type, _, dst_type = sampler.edge_type
        self.layout = Layout(sampler.negatives, [r.src.numel() for r in requests], joint=src_type == dst_type)
        self.counts = self.layout.lengths
        """Number of distinct endpoints of each row, if these are found, after :meth:`repair`."""
        self.launch = Launch(
            self.layout,
            requests,
            sampler.device,
            wide=sampler._wide,
            disjoint=sampler.disjoint,
            exclude=sampler._avoid is not None,
            kind=kind,
        )
        longest = max(self.layout.num_dst)
        if longest > 0:
            kernels.draw_endpoints[(-(-longest // _TILE), len(requests))](
                sampler._about,
                self.launch.descriptor,
                LIMITS=requests[0].time_max is not None,
                WINDOW=requests[0].time_min is not None,
                T=_TILE,
                **sampler._modes,
            )
        if unique:
            self._number()
        self._late = Readback(self.launch.state)

    def repair(self) -> bool:
        """Wait for the counts; raise for bad ids. Draw failed negatives exactly, and return whether there were any."""
        state = self._late.wait().tolist()
        if state[_NUM_BAD]:
            for request in self._requests:
                check_edge_request(self._sampler.graph, request, self._sampler.negatives)
        changed: bool = state[_NUM_LEFT] > 0
        if changed:
            failed = self.launch.failed.cpu().numpy()
            for b, num_neg in enumerate(self.layout.num_neg):
                first = b * self.layout.pitch
                todo = np.flatnonzero(failed[first : first + num_neg])
                if todo.size:
                    self._choose(b, todo)
            if self._unique:
                self._number()
                state = self.launch.state.tolist()
        if self._unique:
            self.counts = state[_COUNTS:]
        return changed

    def _choose(self, b: int, todo: Ints) -> None:
        """Draw negatives ``todo`` of batch ``b`` with the exact code of the CPU."""
        sampler, request, layout = self._sampler, self._requests[b], self.layout
        avoid, src, dst = sampler._avoid, sampler._src.table, sampler._dst.table
        assert avoid is not None
        assert dst is not None
        key = key_of_kind(request.key, self._kind)
        num_pos, num_neg = layout.num_pos[b], layout.num_neg[b]
        time = None if request.time_max is None else request.time_max.cpu().numpy()[todo % num_pos]
        out, (src_at, dst_at) = self.launch.out, layout.ends(b)
        at = torch.from_numpy(todo).to(sampler.device) + num_pos
        sources = request.src.cpu().numpy()[todo % num_pos] if src is None else src
        s, d = choose_negatives(key, sources, dst, num_neg, todo, time, avoid)
        if src is not None:
            out[src_at + at] = torch.from_numpy(s).to(sampler.device, out.dtype)
        out[dst_at + at] = torch.from_numpy(d).to(sampler.device, out.dtype)

    def _number(self) -> None:
        """Sort the endpoints of each row, remove duplicates, and compute the local id of each endpoint."""
        layout, launch = self.layout, self.launch
        value, order = torch.sort(launch.out.view(-1, layout.pitch), dim=1)
        kernels.number_endpoints[(len(layout.lengths),)](
            launch.descriptor, value, order, TRIPLET=layout.triplet, T=_LONG_TILE
        )
