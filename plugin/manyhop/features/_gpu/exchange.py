"""Rows that other ranks' GPUs have: all tensors of a batch in one exchange between all ranks."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import FeatureError, RankError
from manyhop.features._buffers import BufferPool
from manyhop.features._cached import HotRows
from manyhop.features._checks import out_of_range
from manyhop.features._distributed import DistributedRows
from manyhop.features._exchange import Traffic
from manyhop.features._gather import RowRequest
from manyhop.features._gpu import moving
from manyhop.features._gpu.communicators import check_gpus
from manyhop.features._gpu.flight import MOST_GROUPS, Flight
from manyhop.features._gpu.moving import Piece, lay_out, move, mover
from manyhop.features._gpu.routes import Group, enqueue_route, enqueue_unpack, make_groups, marker, placer, unpacker
from manyhop.features._gpu_cache import require_gpu_memory
from manyhop.features._headers import (
    HEADER_WORDS,
    ExchangeEndedError,
    Status,
    Tag,
    compare_headers,
    make_headers,
    signature_of,
)
from manyhop.features._losing import Losing
from manyhop.world import World, init

_OUT_OF_RANGE = "FeatureError: a row number is out of range"
_CACHE: Tag = (-2, 0)  # of the exchange that fills a cache: no epoch has it


class GPUExchange(Losing):
    """Gathers rows from the GPUs that have them, over NCCL. All ranks make it, and call it in lockstep.

    One exchange answers all requests of all ranks for one batch. The GPU sorts the ids by the rank that has their rows,
    and leaves out those that come again. Ranks tell each other how many rows they want, which is the one thing that the
    host waits for, and which. Then they send rows, in parts; meanwhile those of the next part are put together, and the
    own ones copied. Not for several threads at once (``manyhop.pipeline`` keeps them in order).

    Args:
        name: for errors.
        timeout: seconds to wait for other ranks.

    Raises:
        InputError: there is not a GPU of its own for every rank.
        RankError: ranks did not come in time.
    """

    _numbers = itertools.count()
    _of_all = (ExchangeEndedError, FeatureError)

    def __init__(self, name: str, *, timeout: float = 60.0) -> None:
        from manyhop.features._gpu._launch import INTERPRETED

        self.world: World = init(timeout=timeout)
        self.traffic = Traffic()
        self._name, self._timeout, self._key = name, timeout, f"gpu exchange/{next(self._numbers)}"
        self._device = torch.device("cpu") if INTERPRETED else check_gpus(self.world, name, timeout=timeout)
        ranks = self.world.world_size
        self._usual_headers = make_headers(Status.ASKS, (0, 0), 0, _OUT_OF_RANGE, [0] * ranks)
        self._usual = self._flight(self._usual_headers, 0)  # of gathers, which wait for it
        self._last: Flight | None = None
        self._group: Any = None
        for kernel in [
            marker(True, False),
            marker(True, True),
            placer(False),
            unpacker(False),
            mover(16, 4, 0),
            mover(16, 4, 4),
            mover(16, 0, 4),
        ]:
            kernel.prepare(self._device)
        if not self.world.is_alone:
            self._group = _new_group(self._device, timeout)
            with self._losing((-1, -1)):
                self._send_headers(Status.ASKS, (-1, -1), 0).wait()  # NCCL connects the ranks

    def gather(self, requests: Sequence[RowRequest], tag: Tag, *, pool: BufferPool | None = None) -> list[Tensor]:
        """``source[index]`` for each request, whose sources are :class:`DistributedRows`. All ranks call it.

        Enqueues on the current stream, and waits once for what the other ranks want.

        Args:
            requests: the same sources in the same order on all ranks; every rank has ids of its own, maybe none.
                Those that share an index on one rank do so on all.
            tag: epoch and number; compared, so that ranks that are out of step get an error and not wrong rows.
            pool: of CPU memory, of which nothing is needed: results lie on the GPU.

        Raises:
            FeatureError: an id is out of range. The other ranks get a RankError.
            RankError: another rank failed, left, is gone, late or out of step.
        """
        with self._losing(tag), self._on_device():
            groups, outs = make_groups(requests, self._device)
            for begin in range(0, max(1, len(groups)), MOST_GROUPS):
                some = groups[begin : begin + MOST_GROUPS]
                self._exchange(some, self._find_out(some, requests, tag))
        return outs

    def keep(self, hottest: Sequence[tuple[Sequence[DistributedRows], Tensor]]) -> None:
        """Have this rank's GPU keep rows of others. All ranks call it, with the same sources in the same order.

        Args:
            hottest: sources that are read by the same ids, and which rows of them, ``[count] int64``, ascending and
                unique: every rank has ids of its own, maybe none.

        Raises:
            CapacityError: the GPU has not enough memory left.
            RankError: another rank failed (for lack of memory, say) or is late.
        """
        requests, sets = [], []
        try:
            for sources, ids in hottest:
                ids = ids.to(self._device)
                needed = sum(source.row_bytes for source in sources) * ids.numel()
                require_gpu_memory(needed + sources[0].num_rows // 4, self._device)
                sets.append(HotRows.of(ids, sources[0].num_rows))
                requests += [RowRequest(source, ids, name="the cache") for source in sources]
        except Exception as error:
            self.end(_CACHE, f"{type(error).__name__}: {error}")  # the others are waiting
            raise
        rows = iter(self.gather(requests, _CACHE))
        for (sources, _), hot in zip(hottest, sets, strict=True):
            for source in sources:
                source.hot, source.hot_rows = hot, next(rows)

    def end(self, tag: Tag, failure: str = "") -> None:
        """Tell the other ranks that this one will not come to exchange ``tag``, nor any after it in this epoch.

        They get a RankError if they come to it themselves. Does not wait for them.
        """
        if self._group is not None:
            with self._losing(tag), self._on_device():
                self._last = self._send_headers(Status.FAILED if failure else Status.LEFT, tag, 0, failure)

    def begin(self) -> None:
        """Before the first exchange of an epoch: wait until the others know that this rank has left the one before."""
        if self._ended is not None:
            raise RankError(str(self._ended), ranks=self._ended.ranks)
        last, self._last = self._last, None
        if last is not None:
            with self._losing((-1, -1)), self._on_device():
                last.wait()
                self._make_room(last)

    def close(self) -> None:
        """Give the connections back, unless the other ranks have still to read something."""
        import torch.distributed as dist

        group, self._group = self._group, None
        self._ended = self._ended or RankError(f"{self._name}: the exchange is closed.")
        if group is not None and (self._last is None or self._last.landed()):
            with contextlib.suppress(RuntimeError, ValueError, AssertionError):  # the default group is gone already
                dist.destroy_process_group(group)

    # The steps of an exchange

    def _find_out(self, groups: list[Group], requests: Sequence[RowRequest], tag: Tag) -> _Wanted:
        """Sort the ids, and find out what is wanted of this rank."""
        rank, flight, number = self.world.rank, self._usual, len(groups)
        most = sum(group.index.numel() * sum(group.widths) for group in groups)
        flight.say(tag, signature_of(requests), max(1, -(-most // moving.PART_BYTES)))
        flight.load()
        for g, group in enumerate(groups):
            enqueue_route(group, g, number, rank, flight)
        flight.start(self._group)
        flight.arrive()
        asked = [enqueue_unpack(group, g, number, rank, flight) for g, group in enumerate(groups)]
        flight.wait()
        fitted = self._make_room(flight)
        for g, group in enumerate(groups):
            group.ends = flight.seen_ends[g].tolist()
            bad = int(flight.seen_bad[g])
            if bad:
                raise out_of_range(group.request, bad - 1, group.request.source.num_rows)
        headers = compare_headers(self._name, flight.seen[:, :HEADER_WORDS], rank, tag)
        counts = flight.seen[:, HEADER_WORDS : HEADER_WORDS + number].tolist()
        counts[rank] = [0] * number
        rows = [ids for ids in asked if ids is not None] if fitted else []
        return _Wanted(counts, rows if len(rows) == number else None, max(parts for _, parts in headers))

    def _make_room(self, flight: Flight) -> bool:
        """Was there room for the ids of all ranks? If not, all of them have more from the next exchange on."""
        room = flight.room_needed()
        if room > self._usual.room:
            self._usual = self._flight(self._usual_headers, room)
        return room == flight.room

    def _exchange(self, groups: list[Group], wanted: _Wanted) -> None:
        rank, ranks, parts = self.world.rank, self.world.world_size, wanted.parts
        widths = [group.widths for group in groups]
        asked = self._ask(groups, wanted.counts) if wanted.rows is None else wanted.rows
        by_group = [group.counts(rank) for group in groups]
        wants = [[counts[other] for counts in by_group] for other in range(ranks)]
        flights = []
        for k in range(parts if ranks > 1 else 0):
            given, sent_bytes = lay_out(wanted.counts, widths, k, parts)
            taken, received_bytes = lay_out(wants, widths, k, parts)
            sent, received = self._bytes(sum(sent_bytes)), self._bytes(sum(received_bytes))
            self._serve(groups, asked, given, sent)
            flights.append((self._all_to_all(received, sent, received_bytes, sent_bytes), taken, received, sent))
        for group in groups:
            self._copy(group, group.own, [source.rows for source in group.sources])
            self._copy(group, group.cached, [source.hot_rows for source in group.sources])
        for work, taken, received, _ in flights:
            work.wait()
            self._deliver(groups, taken, received)
        for group in groups:
            self._copy(group, group.repeated, group.outs)
            self._count(group)

    def _ask(self, groups: list[Group], wanted: list[list[int]]) -> list[Tensor]:
        """Tell ranks which rows are wanted; ``[groups]``: the rows that others want of this one, by rank."""
        asked = []
        for g, group in enumerate(groups):
            counts = [of_rank[g] for of_rank in wanted]
            asked.append(group.rows.new_empty(sum(counts)))
            if self._group is not None:
                own = group.counts(self.world.rank)
                self._all_to_all(asked[g], group.rows[group.remote], counts, own).wait()
        return asked

    def _serve(self, groups: list[Group], asked: list[Tensor], pieces: list[Piece], sent: Tensor) -> None:
        """Put the rows of a part together for the ranks that have asked for them."""
        for piece in pieces:
            group, count = groups[piece.group], piece.end - piece.begin
            source, rows = group.sources[piece.table].rows, asked[piece.group][piece.begin : piece.end]
            target = sent.data_ptr() + piece.offset
            move(source.data_ptr(), rows, target, None, count, group.widths[piece.table], self._device)

    def _deliver(self, groups: list[Group], pieces: list[Piece], received: Tensor) -> None:
        """Put rows that ranks have sent where they belong."""
        for piece in pieces:
            group, count = groups[piece.group], piece.end - piece.begin
            begin, target = group.remote.start + piece.begin, group.outs[piece.table].data_ptr()
            source = received.data_ptr() + piece.offset
            positions = group.positions[begin : begin + count]
            move(source, None, target, positions, count, group.widths[piece.table], self._device)

    def _copy(self, group: Group, entries: slice, tables: Sequence[Tensor | None]) -> None:
        """Copy the rows of some entries from tables that this rank has."""
        count = entries.stop - entries.start
        if count:
            rows, positions = group.rows[entries], group.positions[entries]
            for table, out, width in zip(tables, group.outs, group.widths, strict=True):
                if table is not None:
                    move(table.data_ptr(), rows, out.data_ptr(), positions, count, width, self._device)

    def _all_to_all(self, received: Tensor, sent: Tensor, expected: list[int], sizes: list[int]) -> Any:
        import torch.distributed as dist

        return dist.all_to_all_single(received, sent, expected, sizes, group=self._group, async_op=True)

    def _bytes(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def _count(self, group: Group) -> None:
        rows = group.remote.stop - group.remote.start
        self.traffic.rows_received += rows
        self.traffic.bytes_received += rows * sum(group.widths)
        self.traffic.rows_cached += group.cached.stop - group.cached.start

    # What ranks say to each other before

    def _flight(self, headers: Tensor, room: int) -> Flight:
        return Flight(self.world.world_size, self._device, self._timeout, headers, room)

    def _send_headers(self, status: Status, tag: Tag, signature: int, text: str = "") -> Flight:
        headers = make_headers(status, tag, signature, text, [0] * self.world.world_size)
        flight = self._flight(headers, self._usual.room)
        flight.load()
        flight.start(self._group)
        return flight

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        """The body runs with this rank's GPU as the current one, which threads do not have of themselves."""
        if self._device.type == "cpu" or torch.cuda.current_device() == self._device.index:
            yield
        else:
            with torch.cuda.device(self._device):
                yield

    def _hang_up(self) -> None:
        """Close the connections, which wakes the ranks that wait for this one; kernels that wait on this GPU end."""
        group, self._group, self._last = self._group, None, None
        if group is not None and self._device.type == "cuda":
            with contextlib.suppress(RuntimeError):
                group.abort()
        elif group is not None:
            import torch.distributed as dist

            with contextlib.suppress(RuntimeError, ValueError, AssertionError):
                dist.destroy_process_group(group)


@dataclass
class _Wanted:
    """What the other ranks want of this one."""

    counts: list[list[int]]
    """``[world_size][groups]``: how many rows each wants; 0 of this rank."""
    rows: list[Tensor] | None
    """``[groups]``: which rows, by rank; ``None``: that is still to be asked."""
    parts: int
    """In how many parts all ranks get theirs."""


def _new_group(device: torch.device, timeout: float) -> Any:
    """All ranks, for this exchange alone."""
    import torch.distributed as dist

    if device.type == "cpu":
        return dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
    options = dist.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = True  # else its kernels wait for those that put the next part together
    options._timeout = timedelta(seconds=10 * timeout)  # the exchange loses patience first
    return dist.new_group(backend="nccl", timeout=options._timeout, pg_options=options)
