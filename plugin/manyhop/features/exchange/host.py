"""Rows that other nodes hold in their memory: the exchange between hosts, over gloo."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.features.buffers import BufferPool
from manyhop.features.exchange.peers import Peers, wait_for
from manyhop.features.exchange.requested import Pattern, Piece, Shared, lay_out
from manyhop.features.exchange.row_exchange import RowExchange, Status, Tag, compare_headers, make_headers
from manyhop.features.requests import RowRequest, out_of_range
from manyhop.features.sources import ShardedRows, servers
from manyhop.ranks import control
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop.ranks.world import World
from manyhop.system.threads import available_cores

# Bytes that one rank sends another at a time. Measured: with cores for all threads, as much as the cache of a core
# holds; otherwise each part costs changes of the thread.
_PART_BYTES, _PART_BYTES_FEW_CORES = 1 << 20, 4 << 20
_THREADS = 3  # of a rank in an exchange: a sender, a receiver, and one of gloo
_IN_FLIGHT = 3  # parts

Counts: TypeAlias = Sequence[Sequence[int]]
Ids: TypeAlias = Sequence[Sequence[Tensor]]


class Exchange(RowExchange):
    """Gather rows from the nodes that hold them, over gloo. All ranks create it, and call it in lockstep.

    Ids of this node's rows are read from its memory, and those in its cache as well. Each other id is sent once to the
    node that holds its rows, which sends the rows of all tensors.

    Args:
        name: name of the exchange in errors.
        timeout: seconds to wait for other ranks.

    Raises:
        RankError: a rank is late.
    """

    _numbers = itertools.count()

    def __init__(self, name: str, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        super().__init__(name, f"exchange/{next(self._numbers)}", timeout)
        node = self.world.node
        self._servers = [rank for other, rank in enumerate(servers(self.world)) if other != node]
        control.side_store()  # to find out who is missing, when its process may have ended
        self._giver = ThreadPoolExecutor(1, "manyhop-exchange")  # serves others while this rank's rows arrive
        self._peers = Peers(torch.device("cpu"), timeout) if self.world.num_nodes > 1 else None

    def all_to_all(self, received: Tensor, sent: Tensor, expected: list[int], sizes: list[int]) -> None:
        """Exchange bytes with all ranks, by rank: ``[sum(expected)]`` and ``[sum(sizes)] uint8``."""
        with self._failing((-1, -1)):
            self._connected.swap(received, sent, expected, sizes)

    def close(self) -> None:
        """Close the connections, unless the other ranks have yet to read something."""
        peers, self._peers = self._peers, None
        self._giver.shutdown(wait=False)
        super().close()
        if peers is not None and (self._last is None or self._last.is_completed()):
            peers.close()

    @property
    def _connected(self) -> Peers:
        assert self._peers is not None
        return self._peers

    def _gather(
        self, requests: Sequence[RowRequest], pattern: Pattern, tag: Tag, pool: BufferPool | None
    ) -> list[Tensor]:
        pool = pool or BufferPool(0)
        outs = [pool.empty((r.index.numel(), *r.source.shape[1:]), r.source.dtype) for r in requests]
        try:
            routes = [_route(requests[shared.members[0]], shared, outs, pool) for shared in pattern.groups]
        except FeatureError as error:
            self.end(tag, str(error))
            raise
        node, nodes, ranks = self.world.node, self.world.num_nodes, range(self.world.world_size)
        dtype = torch.int64 if any(r.source.num_rows >= 2**31 for r in requests) else torch.int32
        wanted = [[r.count(self.world.nodes[rank]) if rank in self._servers else 0 for r in routes] for rank in ranks]
        widths = [sum(shared.widths) for shared in pattern.groups]
        largest = max((sum(map(math.prod, zip(counts, widths, strict=True))) for counts in wanted), default=0)
        questions = [self._question(routes, wanted[rank], rank, dtype) for rank in ranks]
        lengths, parts = [len(question) for question in questions], _number_of_parts(largest, self.world)
        received, work = self._send_headers(Status.ASKS, tag, pattern.signature, "", lengths, parts)
        work.wait()
        headers = compare_headers(self._name, received.view(len(ranks), -1), self.world.rank, tag)
        asked = [torch.empty(words, dtype=dtype, device="cpu") for words, _ in headers]
        wait_for(self._connected.swap_each(asked, questions))
        given = [words[: len(routes)].tolist() if len(words) else [0] * len(routes) for words in asked]
        ids = [torch.split(words[len(routes) :].long(), counts) for words, counts in zip(asked, given, strict=True)]
        parts = max(parts for _, parts in headers)
        giving = self._giver.submit(self._give, routes, given, ids, parts, pool)
        self._take(routes, wanted, parts, pool)
        giving.result()
        for r, width in zip(routes, widths, strict=True):
            r.copy(nodes + 1, r.outs)  # repeated ids
            self.traffic.add(sum(r.count(other) for other in range(nodes) if other != node), width, r.count(nodes))
        return outs

    def _question(self, routes: list[Routes], counts: list[int], rank: int, dtype: torch.dtype) -> Tensor:
        """Return the request for a rank: the number of rows of each index, then the rows; nothing for most ranks."""
        if rank not in self._servers:
            return torch.empty(0, dtype=dtype, device="cpu")
        node = self.world.nodes[rank]
        numbers = torch.tensor(counts, dtype=dtype, device="cpu")
        return torch.cat([numbers, *(r.rows_at(node).to(dtype) for r in routes)])

    def _give(self, routes: list[Routes], given: Counts, ids: Ids, parts: int, pool: BufferPool) -> None:
        """Send rows of this node to the ranks that request them, in parts, some of which are in flight at a time."""
        widths, nothing = [r.shared.widths for r in routes], [0] * len(routes)
        in_flight: deque[tuple[list[Any], Tensor]] = deque()
        for k in range(parts):
            if len(in_flight) == _IN_FLIGHT:
                wait_for(in_flight.popleft()[0])
            pieces, sizes = lay_out(given, nothing, widths, k, parts)
            sent = pool.empty((sum(sizes),), torch.uint8)
            for piece in pieces:
                routes[piece.group].gather(piece, ids[piece.rank][piece.group], sent)
            in_flight.append((self._connected.send_each(torch.split(sent, sizes)), sent))
        for works, _ in in_flight:
            wait_for(works)

    def _take(self, routes: list[Routes], wanted: Counts, parts: int, pool: BufferPool) -> None:
        """Receive the parts of :meth:`_give`; while they are in flight, copy the rows of this node."""
        widths, nothing = [r.shared.widths for r in routes], [0] * len(routes)
        in_flight: deque[tuple[list[Any], list[Piece], Tensor]] = deque()

        def expect(k: int) -> None:
            pieces, sizes = lay_out(wanted, nothing, widths, k, parts)
            received = pool.empty((sum(sizes),), torch.uint8)
            in_flight.append((self._connected.receive_each(torch.split(received, sizes)), pieces, received))

        for k in range(min(parts, _IN_FLIGHT)):
            expect(k)
        for r in routes:
            r.copy(self.world.node, [source.rows for source in r.shared.sources])
            r.copy(self.world.num_nodes, [source.hot_rows for source in r.shared.sources])
        for k in range(parts):
            works, pieces, received = in_flight.popleft()
            wait_for(works)
            for piece in pieces:
                routes[piece.group].scatter(piece, self.world.nodes[piece.rank], received)
            if k + _IN_FLIGHT < parts:
                expect(k + _IN_FLIGHT)

    def _announce_end(self, status: Status, tag: Tag, text: str) -> None:
        self._last = self._send_headers(status, tag, 0, text, [0] * self.world.world_size, 0)[1]

    def _send_headers(
        self, status: Status, tag: Tag, signature: int, text: str, lengths: list[int], parts: int
    ) -> tuple[Tensor, Any]:
        headers = make_headers(status, tag, signature, text, lengths, parts)
        received, sizes = torch.empty_like(headers).view(-1), [headers.shape[1]] * len(headers)
        return received, self._connected.swap(received, headers.view(-1), sizes, sizes, wait=False)

    def _disconnect(self) -> None:
        self._last = None
        self.close()


@dataclass(frozen=True)
class Routes:
    """The ids of one index by the holder of their rows: a node, the cache or, of repeated ids, the result."""

    shared: Shared
    outs: list[Tensor]
    """``[count, ...]`` of each tensor: the results."""
    offsets: list[int]
    """``[num_nodes + 3]``: where the entries of each node, of the cache and of repeated ids begin; then the end."""
    rows: Tensor
    """``[count] int64``: row in that node's part, in the cache, or, of repeated ids, in the result."""
    positions: Tensor
    """``[count] int64``: positions in the result."""

    def count(self, place: int) -> int:
        """Return the number of entries of a place."""
        return self.offsets[place + 1] - self.offsets[place]

    def rows_at(self, place: int) -> Tensor:
        """Return the rows that are read from a place."""
        return self.rows[self.offsets[place] : self.offsets[place + 1]]

    def copy(self, place: int, tables: Sequence[Tensor | None]) -> None:
        """Copy the rows of a place to the results; ``tables``: where it has the rows of each tensor."""
        begin, count = self.offsets[place], self.count(place)
        rows, positions = self.rows.data_ptr() + 8 * begin, self.positions.data_ptr() + 8 * begin
        for table, out, width in zip(tables, self.outs, self.shared.widths, strict=True):
            if table is not None:
                _move(table.data_ptr(), rows, out.data_ptr(), positions, count, width)

    def gather(self, piece: Piece, ids: Tensor, sent: Tensor) -> None:
        """Gather rows of this node that a rank requests (``[...] int64``) into a message."""
        table, width = self.shared.sources[piece.table].rows.data_ptr(), self.shared.widths[piece.table]
        rows, message = ids.data_ptr() + 8 * piece.begin, sent.data_ptr() + piece.offset
        _move(table, rows, message, 0, piece.end - piece.begin, width)

    def scatter(self, piece: Piece, node: int, received: Tensor) -> None:
        """Write rows of a message from a node to the results."""
        out, width = self.outs[piece.table].data_ptr(), self.shared.widths[piece.table]
        positions = self.positions.data_ptr() + 8 * (self.offsets[node] + piece.begin)
        _move(received.data_ptr() + piece.offset, 0, out, positions, piece.end - piece.begin, width)


def _move(*arguments: int) -> None:
    from manyhop.features.cpu_kernels import move_rows

    move_rows(*arguments)


def _number_of_parts(nbytes: int, world: World) -> int:
    """Return the number of parts of the rows that ranks send, at most ``nbytes`` from one to another."""
    enough = available_cores() >= _THREADS * world.local_world_size
    return max(1, math.ceil(nbytes / (_PART_BYTES if enough else _PART_BYTES_FEW_CORES)))


def _route(request: RowRequest, shared: Shared, outs: Sequence[Tensor], pool: BufferPool) -> Routes:
    """Sort the ids of an index; FeatureError: one is out of range."""
    from manyhop.features.cpu_lookup import route

    source: ShardedRows = request.source
    index, shards, node, hot = request.index.contiguous(), source.shards, source.world.node, source.hot
    count = index.numel()
    position_bits = count.bit_length()
    if position_bits + shards.num_rows.bit_length() > 63:
        raise FeatureError(f"Expected fewer ids at a time of {shards.num_rows} rows, got {count}. Use smaller batches.")
    table_bits = max(6, position_bits + 1, shards.num_nodes.bit_length() + 1)  # half of it remains empty: fewer steps
    bounds = torch.tensor(shards.bounds, device="cpu")
    offsets = torch.empty(shards.num_nodes + 3, dtype=torch.int64, device="cpu")
    table = pool.empty((1 << table_bits,), torch.int64)
    scratch = pool.empty((2 * count,), torch.int64)
    rows, positions = pool.empty((count,), torch.int64), pool.empty((count,), torch.int64)
    bad = route(
        index.data_ptr(), index.dtype == torch.int64, count, bounds.data_ptr(), shards.num_nodes, node,
        0 if hot is None else hot.groups.data_ptr(), table.data_ptr(), table_bits, position_bits, scratch.data_ptr(),
        offsets.data_ptr(), rows.data_ptr(), positions.data_ptr(),
    )  # fmt: skip
    if bad >= 0:
        raise out_of_range(request, bad, shards.num_rows)
    return Routes(shared, [outs[member] for member in shared.members], offsets.tolist(), rows, positions)
