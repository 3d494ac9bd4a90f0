"""Gather rows from the GPUs of other ranks: one exchange for all tensors of a batch."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.features.buffers import BufferPool
from manyhop.features.exchange.gpu.connections import connections
from manyhop.features.exchange.gpu.flight import MOST_GROUPS, NEEDS, Flight, SpeculativeQuota
from manyhop.features.exchange.gpu.routes import Group, Repeats, enqueue_routes, make_groups, marker, placer
from manyhop.features.exchange.gpu.transfer import Transfer, enqueue_serve, usual_kernels
from manyhop.features.exchange.peers import Peers
from manyhop.features.exchange.requested import Pattern
from manyhop.features.exchange.row_exchange import (
    HEADER_WORDS,
    ExchangeEndedError,
    RowExchange,
    Status,
    Tag,
    compare_headers,
    make_headers,
    reason_in,
)
from manyhop.features.requests import RowRequest, out_of_range
from manyhop.features.sources import DistributedRows, HotRows
from manyhop.features.visits import CACHE_TAG, require_gpu_memory
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop.ranks.cuda import check_gpus

_ASKS = int(Status.ASKS)
_OUT_OF_RANGE = "FeatureError: a row number is out of range"


class GPUExchange(RowExchange):
    """Gather rows from the GPUs that own them, over NCCL. All ranks create it, and call it in lockstep.

    The GPU sorts the ids by owner rank, and removes repeated ids if that is faster. Ranks exchange counts and ids, and
    send the number of rows that earlier exchanges predict (see ``SpeculativeQuota``) while the host waits for the
    counts. The rest, if any, follows in parts: the next part is gathered and own rows are copied while a part is in
    flight. Exchanges of a process share communicators: one has its own from the first call to :meth:`rest`.

    Args:
        name: name of the exchange in errors.
        timeout: seconds to wait for other ranks.

    Raises:
        InputError: ranks share a GPU.
        RankError: a rank is late.
    """

    _numbers = itertools.count()

    def __init__(self, name: str, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        from manyhop.system.triton_launch import INTERPRETED

        super().__init__(name, f"gpu exchange/{next(self._numbers)}", timeout)
        self._device = torch.device("cpu") if INTERPRETED else check_gpus(name, timeout=timeout)
        self._others = self.world.world_size - 1
        self._flight = Flight(self.world.rank, self.world.world_size, self._device, timeout)
        self._quota, self._repeats = SpeculativeQuota(self._others), Repeats()
        self._peers: Peers | None = None
        self._side: Any = None
        self._done: Any = None
        self._events: list[Any] = []
        self._rows_done: Any = None
        self._broken: Peers | None = None
        self._stream_key: Any = None
        self._stream: Any = None
        if self._device.type == "cuda":
            self._side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            created = torch.cuda.current_stream(self._device)  # which fills the memory of the flight
            self._events = [created.record_event() for _ in range(2)]
            self._done = self._events[0]
        for kernel in [marker(True, False), marker(False, False), placer(False), *usual_kernels()]:
            kernel.prepare(self._device)
        self._turns_taken = 0  # with a communicator
        self._owed: tuple[Status, Tag, str] | None = None
        self._connections = None if self.world.is_alone else connections(self._device, timeout)
        with self._failing((-1, -1)), self._on_device():
            self._connect()

    def keep(self, hottest: Sequence[tuple[Sequence[DistributedRows], Tensor]]) -> None:
        """Cache rows of other ranks on this rank's GPU. All ranks call it, with the same sources in the same order.

        Args:
            hottest: sources that are read by the same ids, and their rows to cache, ``[count] int64``, ascending and
                unique; the ids of a rank are its own, maybe none.

        Raises:
            CapacityError: the GPU has too little memory left.
            RankError: another rank failed (for example, for lack of memory) or is late.
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
            self.end(CACHE_TAG, f"{type(error).__name__}: {error}")  # the others are waiting
            raise
        for looks_for_repeats in (True, False):
            marker(looks_for_repeats, True).prepare(self._device)
        rows = iter(self.gather(requests, CACHE_TAG))
        for (sources, _), hot in zip(hottest, sets, strict=True):
            for source in sources:
                source.hot, source.hot_rows = hot, next(rows)

    def close(self) -> None:
        """Refuse all later exchanges. All ranks call it."""
        self.rest()
        super().close()

    def rest(self) -> None:
        peers, self._peers = self._peers, None
        if peers is not None and self._connections is not None:
            self._turns_taken += 1
            self._connections.give_back(peers)

    @property
    def _turn_key(self) -> str:
        return f"{self._store_key}/connections/{self._turns_taken}"

    def _connect(self) -> None:
        """Take a communicator, unless there is one; connect the ranks if they have not used it yet."""
        if self._peers is None and self._connections is not None:
            self._peers = self._connections.take(self._turn_key)
            if not self._peers.is_connected:
                self._announce(Status.ASKS, (-1, -1), "").wait()
                self._peers.is_connected = True

    def _settle(self, peers: Peers) -> None:
        """Make the announcement that is owed to the other ranks, before another exchange takes this exchange's turn."""
        with self._on_device():
            self._peers = peers
            self._pay()
            self.rest()

    def _announce_end(self, status: Status, tag: Tag, text: str) -> None:
        if self._connections is None:
            return
        self._owed = status, tag, text
        if self._peers is None:
            self._peers = self._connections.take_at_once(self._turn_key, self._settle)
        if self._peers is not None:  # else the announcement is owed until begin()
            self._pay()

    def _announce_owed(self) -> None:
        if self._connections is not None and self._connections.forgive(self._turn_key):
            self._connect()
            self._pay()
            self.rest()

    def _pay(self) -> None:
        """Begin the announcement that is owed."""
        assert self._owed is not None
        assert self._peers is not None
        owed, self._owed = self._owed, None
        self._last = self._peers.latest = self._announce(*owed)

    # The steps of an exchange

    def _gather(
        self, requests: Sequence[RowRequest], pattern: Pattern, tag: Tag, pool: BufferPool | None
    ) -> list[Tensor]:
        self._connect()
        stream = self._begin_in_order()
        try:
            groups, outs = make_groups(requests, pattern, self._flight, self._device)
            if len(groups) <= MOST_GROUPS:
                self._exchange(groups, pattern.signature, tag, stream)
            else:
                for begin in range(0, len(groups), MOST_GROUPS):
                    self._exchange(groups[begin : begin + MOST_GROUPS], pattern.signature + begin, tag, stream)
        finally:
            self._end_in_order(stream)
        self._rows_done = self._done
        return outs

    def _exchange(self, groups: list[Group], signature: int, tag: Tag, stream: Any) -> None:
        flight, quota, rank = self._flight, self._quota, self.world.rank
        id_bytes = groups[0].id_bytes if groups else 8
        shares = quota.shares(signature, [group.widths for group in groups], id_bytes)
        transfer = Transfer(self._peers, rank, groups, flight, shares, quota.ahead, stream)
        self._repeats.decide(signature, groups)
        flight.prepare(quota.id_words, len(groups))
        if groups:
            enqueue_routes(groups, rank, flight, shares, tag, signature)
        else:
            flight.write(make_headers(Status.ASKS, tag, signature, "", [0] * self._others))
        flight.start(self._peers, wait=True)
        transfer.send_ahead()
        flight.wait()
        try:
            needs = self._process_report(groups, signature, tag)
        except (ExchangeEndedError, FeatureError):
            transfer.give_up()
            raise
        transfer.send_rest(needs)
        transfer.finish()
        for group in groups:
            ends = group.ends
            self.traffic.add(ends[-3] - ends[0], sum(group.widths), ends[-1] - ends[-2])

    def _process_report(self, groups: list[Group], signature: int, tag: Tag) -> list[int]:
        """Process the report of the headers, and learn from it for the next exchanges.

        Returns:
            ``[groups]``: the most rows that any rank requests from a different rank.
        """
        reported, needs, wrong = self._flight.reported, [], None
        most = reported[:, NEEDS : NEEDS + len(groups)].max(axis=0, initial=0).tolist()
        for group, state, need in zip(groups, self._flight.reported_state[: len(groups)].tolist(), most, strict=True):
            bad = state.pop()
            group.ends = list(accumulate(state))
            needs.append(max(need, *state[1:-2], 0))
            if bad and wrong is None:
                wrong = out_of_range(group.request, bad - 1, group.request.source.num_rows)
        in_step = [_ASKS, *tag, signature]
        all_in_step = wrong is None and reported[:, : len(in_step)].tolist() == [in_step] * self._others
        if all_in_step and groups and tag != CACHE_TAG:
            self._quota.learn(signature, needs, [group.widths for group in groups], groups[0].id_bytes)
        if wrong is not None:
            try:
                raise wrong
            finally:
                del wrong  # its traceback refers to this frame
        if not all_in_step:
            self._raise_mismatch(signature, tag)
        self._repeats.learn(signature, groups)
        return needs

    def _raise_mismatch(self, signature: int, tag: Tag) -> None:
        headers = [torch.from_numpy(header) for header in self._flight.reported[:, :HEADER_WORDS]]
        for header in headers:
            if header[0] == Status.FAILED and not reason_in(header):  # set by a GPU that found a wrong id
                header.copy_(make_headers(Status.FAILED, tag, signature, _OUT_OF_RANGE, [0])[0])
        headers.insert(self.world.rank, make_headers(Status.ASKS, tag, signature, "", [0])[0])
        compare_headers(self._name, torch.stack(headers), self.world.rank, tag)

    def _announce(self, status: Status, tag: Tag, text: str) -> _Announcement:
        """Join an exchange without requests, with this status. Does not wait for it."""
        ranks, stride = self.world.world_size, self._quota.ahead
        with self._on_side_stream():
            stream = self._begin_in_order()
            flight = Flight(self.world.rank, ranks, self._device, self._timeout)  # its memory is filled on this stream
            flight.prepare(self._quota.id_words, 0)
            flight.write(make_headers(status, tag, 0, text, [0] * self._others))
            work = flight.start(self._peers, wait=False)
            if stream is not None:
                enqueue_serve([], flight, self._quota.shares(0, [], 8), 0, 0, stream)
            sent, received = torch.empty(2, self._others * stride, dtype=torch.uint8, device=self._device)
            sizes = [0 if rank == self.world.rank else stride for rank in range(ranks)]
            ahead = self._peers.swap(received, sent, sizes, sizes, wait=False) if stride and self._peers else None
            self._end_in_order(stream)
        sent_by = None if stream is None else stream.record_event()
        return _Announcement(flight, [each for each in (work, ahead) if each is not None], sent_by)

    def _on_side_stream(self) -> AbstractContextManager[Any]:
        """Make a private stream current within the context."""
        return contextlib.nullcontext() if self._side is None else torch.cuda.stream(self._side)

    def _begin_in_order(self) -> Any:
        """Return the current stream (``None`` without a GPU), ordered after the previous exchange."""
        if self._device.type == "cpu":
            return None
        key = torch._C._cuda_getCurrentStream(self._device.index)
        if key != self._stream_key:
            self._stream_key, self._stream = key, torch.cuda.current_stream(self._device)  # creating it takes 10 us
            self._flight.record_stream(self._stream)
        self._stream.wait_event(self._done)
        if self._peers is not None:
            self._stream.wait_event(self._peers.done)
        return self._stream

    def _end_in_order(self, stream: Any) -> None:
        """Order the next exchange, on any stream, after the work enqueued on ``stream``."""
        if stream is not None:
            first, second = self._events
            self._done = second if self._rows_done is first else first
            self._done.record(stream)
            if self._peers is not None:
                self._peers.done.record(stream)

    def _on_device(self) -> AbstractContextManager[Any]:  # new threads start with device 0
        is_current = self._device.type == "cpu" or torch.cuda.current_device() == self._device.index
        return contextlib.nullcontext() if is_current else torch.cuda.device(self._device)

    def _disconnect(self) -> None:
        """Give up the connections, and abort them, which unblocks kernels that wait on this GPU.

        If returned rows are still under way, a step may wait for them: then :meth:`release` aborts.
        """
        peers, self._peers, self._last = self._peers, None, None
        if peers is not None and self._connections is not None:
            self._connections.give_back(peers, broken=True)
            self._broken = peers
            if not self.released_later or not self.rows_under_way():
                self.release()

    def release(self) -> None:
        broken, self._broken = self._broken, None
        if broken is not None:
            self.lacks_rows = self.rows_under_way()
            broken.abort()

    def rows_under_way(self) -> bool:
        return self._rows_done is not None and not self._rows_done.query()


@dataclass
class _Announcement:
    """An announcement to the other ranks, in flight."""

    flight: Flight
    works: list[Any]
    """Work to wait for, without a GPU."""
    sent: Any
    """Event after the announcement; ``None`` without a GPU."""

    def wait(self) -> None:
        """Wait until all ranks have participated."""
        for work in self.works:
            work.wait()
        self.flight.wait()

    def is_complete(self) -> bool:
        """Return whether the announcement has been delivered."""
        return all(work.is_completed() for work in self.works) and (self.sent is None or self.sent.query())
