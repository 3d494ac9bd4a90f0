"""Sampling around seed edges on the GPU: negatives, endpoints and their local ids, equal to ``EdgeSampler``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import EdgeType, Graph, NodeType
from manyhop.sampling._check import check_edge_request, check_negatives
from manyhop.sampling._contract import (
    EdgeRequest,
    NegativeSpec,
    NodeRequest,
    SampledEdges,
    SampledSubgraph,
    Sampler,
)
from manyhop.sampling._gpu.kernels import negatives as kernels
from manyhop.sampling._gpu.lookup import GPUEdgeLookup
from manyhop.sampling._gpu.transfer import Readback, current_stream, kernel_device, on_stream, upload
from manyhop.sampling._negatives import NegativeTable, choose_destinations, choose_pairs
from manyhop.sampling._random import Use, make_key

Ints = npt.NDArray[np.int64]

_TILE = 128
_LONG_TILE = 1024
_NO_NODE = torch.iinfo(torch.int64).max
_NUM_BAD, _NUM_LEFT, _COUNTS = 0, 1, 2


class _Pending(Protocol):
    def finish(self) -> list[SampledSubgraph]: ...


class GPUEdgeSampler:
    """:class:`manyhop.sampling.EdgeSampler` on the GPU: the same results, bit for bit, with all tensors on the device.

    Several batches are made by the same few launches. Not disjoint, ``begin`` waits once for the numbers of unique
    endpoints; disjoint, nothing waits before ``finish``.

    Args:
        sampler: samples around nodes, with results on ``device``; where it has a ``begin``, that is used.
        graph: the topology that ``sampler`` samples from.
        edge_type: type of the seed edges.
        negatives: which negatives to draw; ``None`` for none.
        src_weight: ``[num_nodes]``: sources of binary negatives are drawn in proportion to it; ``None``: uniformly.
        dst_weight: ``[num_nodes]``: the same for destinations.
        disjoint: whether ``sampler`` keeps one tree per seed.
        device: where negatives are drawn and results lie.

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
        self._binary = negatives is not None and negatives.mode == "binary"
        self._triplet = negatives is not None and negatives.mode == "triplet"
        self._avoid: GPUEdgeLookup | None = None
        if negatives is not None and negatives.exclude_true:
            self._avoid = GPUEdgeLookup(graph.csc[edge_type], self.device)
        self._nothing = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._src = self._candidates(edge_type[0], src_weight, drawn=self._binary)
        self._dst = self._candidates(edge_type[2], dst_weight, drawn=negatives is not None)

    def _candidates(self, node_type: NodeType, weight: Tensor | None, *, drawn: bool) -> _Candidates:
        num_nodes, time = self.graph.num_nodes[node_type], self.graph.node_time.get(node_type)
        table = NegativeTable.build(num_nodes, weight, None if time is None else time.cpu()) if drawn else None
        return _Candidates.build(table, num_nodes, self._nothing)

    def sample(self, request: EdgeRequest) -> SampledEdges:
        """Sample around the endpoints of ``request`` and of the negatives drawn for it.

        Raises:
            InputError: the request does not fit the graph or the sampler, or there is no negative to draw.
        """
        return self.begin([request]).finish()[0]

    def begin(self, requests: Sequence[EdgeRequest]) -> PendingEdges:
        """Enqueue the sampling of several batches on the current stream.

        Args:
            requests: the batches; their tensors lie on the CPU or on the device.

        Raises:
            InputError: a request does not fit the graph or the sampler, or there is no negative to draw.
        """
        if not requests:
            raise InputError("Expected at least one request, got none.")
        for request in requests:
            check_edge_request(self.graph, request, in_range=_on_host(request))
            if request.edge_type != self.edge_type:
                raise InputError(f"Expected seed edges of type {self.edge_type}, got {request.edge_type}.")
            if request.time_max is not None and not self.disjoint:
                raise InputError(
                    "Times of seed edges need one tree per endpoint: build the samplers with disjoint=True."
                )
        for name in ("time_max", "time_min"):
            if len({getattr(request, name) is None for request in requests}) > 1:
                raise InputError(f"Expected {name} with all of the requests of one call, or with none.")
        return PendingEdges(self, requests)


@dataclass(frozen=True)
class _Candidates:
    """A table of candidates as the kernel reads it."""

    table: NegativeTable | None
    arguments: tuple[Any, ...]
    """node, time, cumw, last_positive, number of nodes, first positive one."""
    sorted: bool
    weighted: bool

    @staticmethod
    def build(table: NegativeTable | None, num_nodes: int, nothing: Tensor) -> _Candidates:
        if table is None:
            return _Candidates(None, (*[nothing] * 4, num_nodes, 0), False, False)
        columns = [
            nothing if column is None else torch.from_numpy(column).to(nothing.device)
            for column in (table.node, table.time, table.cumw, table.last_positive)
        ]
        arguments = (*columns, num_nodes, table.first_positive)
        return _Candidates(table, arguments, table.node is not None, table.cumw is not None)


class _Layout:
    """Where the endpoints of every batch lie: a row for each of its types, sources before destinations.

    Args:
        sampler: its modes count.
        num_pos: seed edges of each batch.
    """

    def __init__(self, sampler: GPUEdgeSampler, num_pos: Sequence[int]) -> None:
        amount = 0 if sampler.negatives is None else sampler.negatives.amount
        self.num_pos = list(num_pos)
        self.num_neg = [math.ceil(n * amount) for n in num_pos]
        self.num_src = [p + n if sampler._binary else p for p, n in zip(self.num_pos, self.num_neg, strict=True)]
        self.num_dst = [p + n for p, n in zip(self.num_pos, self.num_neg, strict=True)]
        self.joint = sampler.edge_type[0] == sampler.edge_type[2]
        lengths = [
            length
            for s, d in zip(self.num_src, self.num_dst, strict=True)
            for length in ([s + d] if self.joint else [s, d])
        ]
        self.lengths = lengths
        self.pitch = max(1, *lengths)

    def ends(self, b: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Row and first column of the sources of batch ``b``, and of its destinations."""
        return ((b, 0), (b, self.num_src[b])) if self.joint else ((2 * b, 0), (2 * b + 1, 0))

    def batches(self, sampler: GPUEdgeSampler, requests: Sequence[EdgeRequest]) -> Ints:
        """The kernel's table of batches."""
        table, first = np.zeros((len(requests), kernels.BATCH_COLUMNS.value), np.int64), 0
        for b, request in enumerate(requests):
            (src_row, src_column), (dst_row, dst_column) = self.ends(b)
            keys = [make_key(use, *request.key).view(np.int64) for use in (Use.NEGATIVE_SRC, Use.NEGATIVE_DST)]
            src_at, dst_at = src_row * self.pitch + src_column, dst_row * self.pitch + dst_column
            table[b] = self.num_pos[b], self.num_neg[b], first, *keys, src_at, dst_at, src_column, dst_column
            first += self.num_pos[b]
        return table

    def rows(self, *, triplet: bool) -> Ints:
        """The kernel's table of rows."""
        table = np.zeros((len(self.lengths), kernels.ROW_COLUMNS.value), np.int64)
        for r, length in enumerate(self.lengths):
            b = r if self.joint else r // 2
            has_drawn = triplet and (self.joint or r % 2 == 1)
            table[r] = length, length - self.num_neg[b] if has_drawn else length, self.num_pos[b]
        return table


class PendingEdges:
    """Batches of seed edges on their way; made by :meth:`GPUEdgeSampler.begin`."""

    def __init__(self, sampler: GPUEdgeSampler, requests: Sequence[EdgeRequest]) -> None:
        self._sampler = sampler
        self._requests = list(requests)
        self._layout = _Layout(sampler, [request.src.numel() for request in requests])
        self._stream = current_stream(sampler.device)
        with on_stream(self._stream):
            self._begin()

    def _begin(self) -> None:
        sampler, layout = self._sampler, self._layout
        num_rows, device = len(layout.lengths), sampler.device
        self._out, self._index, self._out_max, self._out_min = (
            torch.empty((num_rows, layout.pitch), dtype=torch.int64, device=device) for _ in range(4)
        )
        self._unique = self._out
        self._failed = torch.empty((num_rows, layout.pitch), dtype=torch.int8, device=device)
        self._state = torch.zeros(_COUNTS + num_rows, dtype=torch.int64, device=device)
        self._counts = layout.lengths
        self._draw()
        if not sampler.disjoint:
            self._number()
        self._late = Readback(self._state)
        if not sampler.disjoint:
            self._repair()
        self._pending = self._begin_nodes()

    def finish(self) -> list[SampledEdges]:
        """The samples, once the device has counted; waits for that.

        Raises:
            InputError: a request does not fit the graph or the sampler, or there is no negative to draw.
        """
        with on_stream(self._stream):
            if self._sampler.disjoint and self._repair():
                self._pending = self._begin_nodes()
            return [self._result(b, subgraph) for b, subgraph in enumerate(self._pending())]

    def _draw(self) -> None:
        """Endpoints of all batches, negatives included."""
        sampler, layout, requests, nothing = self._sampler, self._layout, self._requests, self._sampler._nothing
        if max(layout.num_dst) == 0:
            return
        first = requests[0]
        fields = ["src", "dst"]
        fields += ["time_max"] if first.time_max is not None else []
        fields += ["time_min"] if first.time_min is not None else []
        table, *rest = _gather(
            [layout.batches(sampler, requests)], [[getattr(r, f) for r in requests] for f in fields], sampler.device
        )
        arrays = dict(zip(fields, rest, strict=True))
        begin, destination = nothing, nothing
        if sampler._avoid is not None:
            begin, destination = sampler._avoid.begin, sampler._avoid.destination
        if not sampler.disjoint:
            self._out.fill_(_NO_NODE)  # rows are sorted with what is behind their ends
        kernels.draw_endpoints[(-(-max(layout.num_dst) // _TILE), len(requests))](
            table,
            arrays["src"],
            arrays["dst"],
            arrays.get("time_max", nothing),
            arrays.get("time_min", nothing),
            self._out,
            self._out_max,
            self._out_min,
            self._index,
            self._failed,
            layout.pitch,
            self._state,
            *sampler._src.arguments,
            *sampler._dst.arguments,
            begin,
            destination,
            BINARY=sampler._binary,
            TRIPLET=sampler._triplet,
            EXCLUDE=sampler._avoid is not None,
            LIMITS="time_max" in arrays,
            WINDOW="time_min" in arrays,
            DISJOINT=sampler.disjoint,
            SRC_SORTED=sampler._src.sorted,
            SRC_WEIGHTED=sampler._src.weighted,
            DST_SORTED=sampler._dst.sorted,
            DST_WEIGHTED=sampler._dst.weighted,
            T=_TILE,
        )

    def _number(self) -> None:
        """Sort the endpoints of each row, drop copies, and say where each endpoint lies."""
        sampler, layout = self._sampler, self._layout
        value, order = torch.sort(self._out, dim=1)
        self._unique = torch.empty_like(value)
        rows = upload([layout.rows(triplet=sampler._triplet)], sampler.device)[0]
        kernels.number_endpoints[(len(layout.lengths),)](
            rows,
            layout.pitch,
            value,
            order,
            self._unique,
            self._index,
            self._state,
            TRIPLET=sampler._triplet,
            T=_LONG_TILE,
        )

    def _repair(self) -> bool:
        """Wait for the counts; raise for bad ids. Choose exactly what no attempt has found; whether there was any."""
        state = self._late.wait().tolist()
        if state[_NUM_BAD]:
            for request in self._requests:
                check_edge_request(self._sampler.graph, request)
        changed: bool = state[_NUM_LEFT] > 0
        if changed:
            failed = self._failed.cpu().numpy()
            for b in range(len(self._requests)):
                todo = np.flatnonzero(failed[b, : self._layout.num_neg[b]])
                if todo.size:
                    self._choose(b, todo)
            if not self._sampler.disjoint:
                self._number()
                state = self._state.tolist()
        if not self._sampler.disjoint:
            self._counts = state[_COUNTS:]
        return changed

    def _choose(self, b: int, todo: Ints) -> None:
        """Negatives ``todo`` of batch ``b``, by the exact code of the CPU."""
        sampler, request, layout = self._sampler, self._requests[b], self._layout
        avoid, src, dst = sampler._avoid, sampler._src.table, sampler._dst.table
        assert avoid is not None
        assert dst is not None
        num_pos, num_neg = layout.num_pos[b], layout.num_neg[b]
        time = None if request.time_max is None else request.time_max.cpu().numpy()[todo % num_pos]
        n_dst = dst.num_eligible(time, todo.size)
        (src_row, src_column), (dst_row, dst_column) = layout.ends(b)
        at = torch.from_numpy(todo).to(sampler.device) + num_pos
        if src is not None:
            n_src = src.num_eligible(time, todo.size)
            s, d = choose_pairs(request.key, src, dst, num_neg, todo, n_src, n_dst, avoid)
            self._out[src_row, src_column + at] = torch.from_numpy(s).to(sampler.device)
        else:
            sources = request.src.cpu().numpy()[todo % num_pos]
            d = choose_destinations(request.key, sources, dst, num_neg, todo, n_dst, avoid)
        self._out[dst_row, dst_column + at] = torch.from_numpy(d).to(sampler.device)

    def _begin_nodes(self) -> Callable[[], list[SampledSubgraph]]:
        """Enqueue the sampling around the endpoints; what gives the samples."""
        sampler, requests = self._sampler, []
        for b, request in enumerate(self._requests):
            times = [
                self._by_type(b, out, self._layout.lengths) if given is not None else None
                for given, out in ((request.time_max, self._out_max), (request.time_min, self._out_min))
            ]
            seeds = self._by_type(b, self._unique, self._counts)
            requests.append(NodeRequest(key=request.key, seeds=seeds, time_max=times[0], time_min=times[1]))
        begin: Callable[[list[NodeRequest]], _Pending] | None = getattr(sampler.sampler, "begin", None)
        if begin is None:
            return lambda: [sampler.sampler.sample(request) for request in requests]
        return begin(requests).finish

    def _by_type(self, b: int, rows: Tensor, counts: Sequence[int]) -> dict[NodeType, Tensor]:
        """The rows of a batch, by node type, each cut to its count."""
        src_type, _, dst_type = self._sampler.edge_type
        if self._layout.joint:
            return {src_type: rows[b, : counts[b]]}
        return {src_type: rows[2 * b, : counts[2 * b]], dst_type: rows[2 * b + 1, : counts[2 * b + 1]]}

    def _result(self, b: int, subgraph: SampledSubgraph) -> SampledEdges:
        sampler, layout = self._sampler, self._layout
        if (subgraph.tree is not None) != sampler.disjoint:
            raise InputError(f"Expected a sampler with disjoint={sampler.disjoint}, got one that differs.")
        num_pos, num_src, num_dst = layout.num_pos[b], layout.num_src[b], layout.num_dst[b]
        (src_row, src_column), (dst_row, dst_column) = layout.ends(b)
        dst_index = self._index[dst_row, dst_column : dst_column + num_dst]
        triplet = sampler._triplet
        amount = int(sampler.negatives.amount) if triplet and sampler.negatives is not None else 0
        timed = self._requests[b].time_max is not None
        return SampledEdges(
            subgraph=subgraph,
            src_index=self._index[src_row, src_column : src_column + num_src],
            dst_index=dst_index[:num_pos] if triplet else dst_index,
            dst_neg_index=dst_index[num_pos:].view(num_pos, amount) if triplet else None,
            num_pos=num_pos,
            time_max=self._out_max[src_row, src_column : src_column + num_src] if timed else None,
        )


def _on_host(request: EdgeRequest) -> bool:
    """Whether looking at the ids costs no synchronisation with the device."""
    return not (request.src.is_cuda or request.dst.is_cuda)


def _gather(tables: list[Ints], columns: list[list[Tensor]], device: torch.device) -> list[Tensor]:
    """``tables``, then ``columns``, the pieces of each behind each other, on the device: one copy if all are here."""
    on_device = [any(piece.is_cuda for piece in pieces) for pieces in columns]
    here = [torch.cat(pieces) for pieces, far in zip(columns, on_device, strict=True) if not far]
    uploaded = iter(upload([*tables, *here], device))
    return [next(uploaded) for _ in tables] + [
        torch.cat([piece.to(device, non_blocking=True) for piece in pieces]) if far else next(uploaded)
        for pieces, far in zip(columns, on_device, strict=True)
    ]
