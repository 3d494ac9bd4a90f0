"""Seed edges of multiple types in one batch, on the GPU: equal to ``manyhop.sampling.seed_edges.sample_together``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from manyhop.graph import NodeType
from manyhop.sampling.contract import EdgeRequest, NodeRequest, Pending, SampledEdges
from manyhop.sampling.gpu.edges import Endpoints, GPUEdgeSampler
from manyhop.sampling.gpu.transfer import Readback, current_stream, on_stream, upload
from manyhop.sampling.seed_edges import check_trees, describe

_PADDING = torch.iinfo(torch.int64).max


class _Piece(NamedTuple):
    """The sources or the destinations of seed edges of one type in one batch, including those of negatives."""

    kind: int
    """Number of the edge type."""
    end: int
    """0 for sources, 1 for destinations."""
    begin: int
    """Where they begin in the output of their launch."""
    size: int


class PendingTypedEdges:
    """Batches of seed edges of multiple types in flight. The constructor waits once, for the numbers of endpoints.

    Args:
        samplers: one per edge type, over the same engine, on one device.
        batches: for each batch one request per edge type, with the same key; the first names the edges that the sample
            must not have.

    Raises:
        InputError: a request does not fit the graph or its sampler, or there is no negative to draw.
    """

    def __init__(self, samplers: Sequence[GPUEdgeSampler], batches: Sequence[Sequence[EdgeRequest]]) -> None:
        self._samplers, self._batches, self._disjoint = samplers, batches, samplers[0].disjoint
        of_types = list(zip(*batches, strict=True))
        for sampler, requests in zip(samplers, of_types, strict=True):
            sampler.check(requests)
        self._stream = current_stream(samplers[0].device)
        with on_stream(self._stream):
            self._ends = [
                Endpoints(sampler, requests, unique=False, kind=i)
                for i, (sampler, requests) in enumerate(zip(samplers, of_types, strict=True))
            ]
            self._rows = self._arrange()
            self._sizes = [sum(piece.size for piece in row) for row in self._rows]
            self._pitch = max(1, *self._sizes)
            self._pending = self._begin()

    def finish(self) -> list[tuple[list[SampledEdges], Tensor | None]]:
        """Return the result of ``sample_together`` for each batch.

        Raises:
            InputError: a sampler that keeps other trees than its engine.
        """
        with on_stream(self._stream):
            subgraphs = self._pending.finish()
            trees: Sequence[Tensor | None] = [None] * len(subgraphs)
            if self._disjoint:
                trees = upload([self._seed_edges(b) for b in range(len(subgraphs))], self._samplers[0].device)
            results = []
            for b, (subgraph, requests, tree) in enumerate(zip(subgraphs, self._batches, trees, strict=True)):
                check_trees(subgraph, disjoint=self._disjoint)
                edges = []
                for i, (sampler, ends) in enumerate(zip(self._samplers, self._ends, strict=True)):
                    time, begin = ends.launch.out_max, ends.layout.ends(b)[0]
                    timed = time.narrow(0, begin, ends.layout.num_src[b]) if requests[i].time_max is not None else None
                    src, dst = self._local[b, i, 0], self._local[b, i, 1]
                    edges.append(describe(sampler.negatives, ends.layout.num_pos[b], subgraph, src, dst, timed))
                results.append((edges, tree))
            return results

    def _arrange(self) -> list[list[_Piece]]:
        """Return the pieces of each node type of each batch, by edge type, sources before destinations."""
        self._types: list[NodeType] = list(dict.fromkeys(s.edge_type[end] for s in self._samplers for end in (0, 2)))
        rows: list[list[_Piece]] = [[] for _ in range(len(self._batches) * len(self._types))]
        for b in range(len(self._batches)):
            for i, (sampler, ends) in enumerate(zip(self._samplers, self._ends, strict=True)):
                sizes = ends.layout.num_src[b], ends.layout.num_dst[b]
                for end, begin, size in zip((0, 1), ends.layout.ends(b), sizes, strict=True):
                    row = b * len(self._types) + self._types.index(sampler.edge_type[2 * end])
                    rows[row].append(_Piece(i, end, begin, size))
        return rows

    def _begin(self) -> Pending:
        """Enqueue the sampling around the endpoints of all types together."""
        ids, local, sizes = self._gather("out"), None, self._sizes
        distinct = None if self._disjoint else _Distinct(ids, sizes)
        if any([ends.repair() for ends in self._ends]):  # all of them are asked
            ids = self._gather("out")
            distinct = None if self._disjoint else _Distinct(ids, sizes)
        if distinct is not None:
            ids, local, sizes = distinct.ids, distinct.local, distinct.sizes()
        self._local = self._local_ids(local)
        time_max, time_min = (
            self._gather(column) if getattr(self._batches[0][0], name) is not None else None
            for name, column in (("time_max", "out_max"), ("time_min", "out_min"))
        )
        requests = [
            NodeRequest(
                key=of_types[0].key,
                seeds=self._by_type(b, ids, sizes),
                time_max=None if time_max is None else self._by_type(b, time_max, sizes),
                time_min=None if time_min is None else self._by_type(b, time_min, sizes),
                exclude=of_types[0].exclude,
            )
            for b, of_types in enumerate(self._batches)
        ]
        pending: Pending = self._samplers[0].sampler.begin(requests)  # type: ignore[attr-defined]
        return pending

    def _gather(self, column: str) -> Tensor:
        """Return the output of launches for each row, padded with the largest numbers, ``[num_rows, pitch]``."""
        padding = torch.full((self._pitch,), _PADDING, device=self._samplers[0].device)
        outputs = [getattr(ends.launch, column) for ends in self._ends]
        parts = []
        for row, size in zip(self._rows, self._sizes, strict=True):
            parts += [outputs[piece.kind].narrow(0, piece.begin, piece.size) for piece in row]
            parts.append(padding.narrow(0, 0, self._pitch - size))
        return torch.cat(parts).view(-1, self._pitch)

    def _local_ids(self, local: Tensor | None) -> dict[tuple[int, int, int], Tensor]:
        """Return the local ids of sources and destinations, by numbers of batch, edge type and end."""
        if local is None:
            local = torch.arange(self._pitch, device=self._samplers[0].device).expand(len(self._rows), -1)
        found = {}
        for r, (row, ids) in enumerate(zip(self._rows, local.unbind(0), strict=True)):
            for piece, begin in zip(row, accumulate((p.size for p in row), initial=0), strict=False):
                found[r // len(self._types), piece.kind, piece.end] = ids.narrow(0, begin, piece.size)
        return found

    def _by_type(self, b: int, rows: Tensor, sizes: Sequence[int]) -> dict[NodeType, Tensor]:
        """Return the rows of a batch by node type, each cut to its size."""
        first = b * len(self._types)
        return {t: rows[first + i, : sizes[first + i]] for i, t in enumerate(self._types)}

    def _seed_edges(self, b: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the seed edge of each tree, numbered through the edge types."""
        num_pos = [ends.layout.num_pos[b] for ends in self._ends]
        first = list(accumulate(num_pos, initial=0))
        rows = self._rows[b * len(self._types) : (b + 1) * len(self._types)]
        return np.concatenate(
            [first[p.kind] + np.arange(p.size, dtype=np.int64) % max(num_pos[p.kind], 1) for row in rows for p in row]
        )


class _Distinct:
    """The sorted distinct ids of each row.

    Args:
        ids: ``[num_rows, pitch] int64``, padded with the largest numbers.
        sizes: how many count, of each row.
    """

    def __init__(self, ids: Tensor, sizes: Sequence[int]) -> None:
        value, order = ids.sort(dim=1)
        first = torch.ones_like(value)
        first[:, 1:] = value[:, 1:] != value[:, :-1]
        number = first.cumsum(1) - 1
        self.ids = torch.empty_like(value).scatter_(1, number, value)  # equal ids write the same
        self.local = torch.empty_like(value).scatter_(1, order, number)
        """Where each id is among them."""
        (size,) = upload([np.array(sizes, np.int64)], ids.device)
        last = number.gather(1, (size - 1).clamp(min=0)[:, None])[:, 0]
        self._late = Readback(torch.where(size > 0, last + 1, 0))

    def sizes(self) -> list[int]:
        """Wait for the number of distinct ids of each row."""
        sizes: list[int] = self._late.wait().tolist()
        return sizes
