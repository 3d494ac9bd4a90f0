"""Transfer of the rows of one exchange between GPUs: a speculative message, then the rest in parts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from manyhop.features.exchange.gpu.flight import IDS, LENGTHS, Flight, Shares
from manyhop.features.exchange.gpu.routes import Group
from manyhop.features.exchange.peers import Peers
from manyhop.features.exchange.requested import Piece, lay_out
from manyhop.features.kernels.move import ALIGNMENT, NARROW, WORDS, move, mover, serve, settle, tiles
from manyhop.system.triton_launch import Kernel

PART_BYTES = 128 << 20
"""Approximate size of a part: while one is in flight, the next one is gathered."""


def enqueue_serve(groups: Sequence[Group], flight: Flight, shares: Shares, sent: int, stride: int, stream: Any) -> None:
    """Report the received headers to the host, and gather the first rows that other ranks request: messages at the
    address ``sent``, ``stride`` bytes each.
    """
    others, header, device = flight.ranks - 1, flight.received_at, flight.sent.device
    arguments, reports = flight.report_arguments(), flight.ranks + 1
    for g, group in enumerate(groups):
        cap = shares.row_caps[g]
        for source, width, begin in zip(group.sources, group.widths, shares.row_begins[g], strict=True):
            if cap and width:
                rows = source.rows
                at = rows.data_ptr()
                size = math.gcd(at | width, ALIGNMENT)
                blocks = tiles(cap * width // size)
                server(size, group.id_bytes)(
                    device, reports + others * blocks, *arguments, reports, at, rows.shape[0],
                    header + 8 * (IDS + shares.id_begins[g]), header + 8 * (LENGTHS + g), sent + begin, stride, cap,
                    width // size, blocks,
                )  # fmt: skip
                reports = 0
    if reports:
        server(16, NARROW.value)(device, reports, *arguments, reports, header, 0, header, header, header, 0, 0, 1, 1)
    flight.record_report(stream)


def enqueue_settle(
    groups: Sequence[Group], flight: Flight, shares: Shares, received: int, stride: int, *, own: bool
) -> None:
    """Scatter the rows of messages, ``stride`` bytes each, to the results, on the current stream.

    If ``own``, also copy own and cached rows.
    """
    ranks = flight.ranks
    for g, group in enumerate(groups):
        cap, most = shares.row_caps[g], group.count if own else 0
        totals = flight.state_at + 8 * g * (ranks + 3)
        for source, out, width, begin in zip(
            group.sources, group.outs, group.widths, shares.row_begins[g], strict=True
        ):
            mine, kept = source.rows.data_ptr(), 0 if source.hot_rows is None else source.hot_rows.data_ptr()
            target = out.data_ptr()
            size = math.gcd((mine | kept if own else 0) | target | width, ALIGNMENT)
            blocks, own_blocks = (tiles(most_rows * width // size) for most_rows in (cap, most))
            programs = (ranks - 1) * blocks + (1 + (own and kept != 0)) * own_blocks
            if programs:
                settler(size, group.id_bytes)(
                    group.index.device, programs, received + begin, stride, cap, mine, kept, most, totals, ranks,
                    group.rows_at, group.positions_at, target, width // size, blocks, own_blocks,
                )  # fmt: skip


@cache
def server(size: int, ids: int) -> Kernel:
    """Return the kernel that gathers rows for other ranks; ``ids``: bytes of row numbers."""
    return Kernel(serve, (*WORDS[size], ids))


@cache
def settler(size: int, ids: int) -> Kernel:
    """Return the kernel that scatters rows to the results; ``ids``: bytes of row numbers."""
    return Kernel(settle, (*WORDS[size], ids))


def usual_kernels() -> list[Kernel]:
    """Return the kernels for rows of a multiple of 16 bytes."""
    narrow = NARROW.value
    return [
        *(mover(16, source, target) for source, target in [(narrow, 0), (narrow, narrow), (0, narrow)]),
        server(16, narrow),
        settler(16, narrow),
    ]


_FEW_BYTES = 48 << 20  # up to this size on the current stream: synchronizing another stream would take longer


@dataclass
class Transfer:
    """The rows of one exchange; speculative messages have ``stride`` bytes. Call the methods in their order."""

    peers: Peers | None
    rank: int
    groups: list[Group]
    flight: Flight
    shares: Shares
    stride: int
    stream: Any
    _ahead: Any = None
    _received: Tensor | None = None
    _settled: bool = False
    _later: list[tuple[Any, list[Piece], Tensor]] = field(default_factory=list)

    def send_ahead(self) -> None:
        """Send the rows within the quota, and enqueue the report to the host. All ranks participate."""
        if self.peers is None or self.stride == 0:
            enqueue_serve([], self.flight, self.shares, 0, 0, self.stream)
            return
        ranks = self.flight.ranks
        nbytes = (ranks - 1) * self.stride
        sent, self._received = (self.flight.memory(use, nbytes, torch.uint8) for use in ("sent", "received"))
        enqueue_serve(self.groups, self.flight, self.shares, sent.data_ptr(), self.stride, self.stream)
        sizes = [self.stride] * ranks
        sizes[self.rank] = 0
        if nbytes <= _FEW_BYTES:
            self.peers.swap(self._received, sent, sizes, sizes)
            self._settle(own=True)
        else:
            self._ahead = self.peers.swap_aside(self._received, sent, sizes, sizes, self.stream)

    def send_rest(self, needs: Sequence[int]) -> None:
        """Send the rows beyond the quota, in parts. All ranks do so, or none does.

        ``needs``: ``[groups]``: the most rows that any rank requests from a different rank.
        """
        caps = self.shares.row_caps
        left = [max(0, need - cap) for need, cap in zip(needs, caps, strict=True)]
        if self.peers is None or not any(left):
            return
        ranks, widths = self.flight.ranks, [group.widths for group in self.groups]
        given = self.flight.reported[:, LENGTHS : LENGTHS + len(left)].tolist()
        given.insert(self.rank, [0] * len(left))
        taken = list(zip(*[group.counts(self.rank) for group in self.groups], strict=True))
        came = all(need <= cap for need, cap in zip(needs, self.shares.id_caps, strict=True))
        ids = self._ids(self.peers, given, taken, came)
        nbytes = (ranks - 1) * sum(rows * sum(of) for rows, of in zip(left, widths, strict=True))
        parts = max(1, -(-nbytes // PART_BYTES))
        for k in range(parts):
            out, sent_bytes = lay_out(given, caps, widths, k, parts)
            into, received_bytes = lay_out(taken, caps, widths, k, parts)
            sent, received = self._bytes(sum(sent_bytes)), self._bytes(sum(received_bytes))
            self._serve(ids, out, sent)
            work = self.peers.swap_aside(received, sent, received_bytes, sent_bytes, self.stream)
            self._later.append((work, into, received))

    def give_up(self) -> None:
        """Abandon the rest; order later work of the stream after the speculative message."""
        if self._ahead is not None:
            self._ahead.wait()

    def finish(self) -> None:
        """Write all rows to the results; own and cached rows while others are in flight."""
        if not self._settled:
            for group in self.groups:
                self._copy(group, group.own, [source.rows for source in group.sources])
                self._copy(group, group.cached, [source.hot_rows for source in group.sources])
            if self._received is not None:
                self._ahead.wait()
                self._settle(own=False)
        for work, taken, received in self._later:
            work.wait()
            self._deliver(taken, received)
        for group in self.groups:
            if group.deduplicate:
                self._copy(group, group.repeated, group.outs)

    def _settle(self, *, own: bool) -> None:
        assert self._received is not None
        received = self._received.data_ptr()
        enqueue_settle(self.groups, self.flight, self.shares, received, self.stride, own=own)
        self._settled = True

    def _ids(self, peers: Peers, given: list[list[int]], taken: Sequence[Sequence[int]], came: bool) -> list[_Ids]:
        """Return the ids requested from this rank, by group.

        ``given`` and ``taken`` are ``[ranks][groups]``: rows that each rank requests from this one, and this one from
        each. Unless all ids ``came`` with the headers, on all ranks, ranks send them now.
        """
        if came:
            begin, header = self.flight.received_at + 8 * IDS, 8 * self.flight.words
            others = [rank - (rank > self.rank) for rank in range(self.flight.ranks)]  # a rank has no message to itself
            return [_Ids([begin + 8 * of + other * header for other in others]) for of in self.shares.id_begins]
        asked = []
        for g, group in enumerate(self.groups):
            counts, own, wanted = [of[g] for of in given], [of[g] for of in taken], group.remote_rows()
            rows = wanted.new_empty(sum(counts))
            peers.swap(rows, wanted, counts, own)
            begins = itertools.accumulate(counts[:-1], initial=0)
            asked.append(_Ids([rows.data_ptr() + group.id_bytes * begin for begin in begins], rows))
        return asked

    def _serve(self, ids: list[_Ids], pieces: list[Piece], sent: Tensor) -> None:
        """Gather the requested rows of a part into the send buffer."""
        for piece in pieces:
            group, id_bytes = self.groups[piece.group], self.groups[piece.group].id_bytes
            move(
                group.sources[piece.table].rows.data_ptr(), sent.data_ptr() + piece.offset, piece.end - piece.begin,
                group.widths[piece.table], sent.device,
                source_rows=ids[piece.group].addresses[piece.rank] + piece.begin * id_bytes, id_bytes=id_bytes,
            )  # fmt: skip

    def _deliver(self, pieces: list[Piece], received: Tensor) -> None:
        """Scatter received rows to the results."""
        for piece in pieces:
            group = self.groups[piece.group]
            entry = group.begin_of(piece.rank, self.rank) + piece.begin
            move(
                received.data_ptr() + piece.offset, group.outs[piece.table].data_ptr(), piece.end - piece.begin,
                group.widths[piece.table], received.device, target_rows=group.positions_at + 4 * entry,
            )  # fmt: skip

    def _copy(self, group: Group, entries: slice, tables: Sequence[Tensor | None]) -> None:
        """Copy the rows of entries from local tables to the results."""
        count, id_bytes = entries.stop - entries.start, group.id_bytes
        if count:
            rows = group.rows_at + id_bytes * entries.start
            positions = group.positions_at + 4 * entries.start
            for table, out, width in zip(tables, group.outs, group.widths, strict=True):
                if table is not None:
                    move(
                        table.data_ptr(), out.data_ptr(), count, width, out.device,
                        source_rows=rows, id_bytes=id_bytes, target_rows=positions,
                    )  # fmt: skip

    def _bytes(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self.flight.sent.device)


@dataclass
class _Ids:
    """Ids requested from this rank, of one index."""

    addresses: list[int]
    """``[num_ranks]``: address of the ids of each rank."""
    memory: Tensor | None = None
    """The tensor of the ids, if nothing else keeps it."""
