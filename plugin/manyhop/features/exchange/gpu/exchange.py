"""Rows that other ranks' GPUs have: all tensors of a batch in one exchange between all ranks."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyhop.control import DEFAULT_TIMEOUT
from manyhop.errors import FeatureError, RankError
from manyhop.features.buffers import BufferPool
from manyhop.features.exchange.failure import Losing
from manyhop.features.exchange.gpu.flight import MOST_GROUPS, NEEDS, Flight
from manyhop.features.exchange.gpu.kept import Kept
from manyhop.features.exchange.gpu.moving import enqueue_serve, usual_kernels
from manyhop.features.exchange.gpu.pattern import Pattern
from manyhop.features.exchange.gpu.peers import Peers
from manyhop.features.exchange.gpu.repeats import Repeats
from manyhop.features.exchange.gpu.routes import Group, enqueue_routes, make_groups, marker, placer
from manyhop.features.exchange.gpu.terms import Terms
from manyhop.features.exchange.gpu.transfer import Buffers, Transfer
from manyhop.features.exchange.headers import (
    HEADER_WORDS,
    ExchangeEndedError,
    Status,
    Tag,
    compare_headers,
    make_headers,
    says_why,
)
from manyhop.features.exchange.host import Traffic
from manyhop.features.hot.gpu import require_gpu_memory
from manyhop.features.requests import RowRequest, out_of_range
from manyhop.features.sources.cached import HotRows
from manyhop.features.sources.distributed import DistributedRows
from manyhop.features.whole_memory.communicators import check_gpus
from manyhop.world import World, init

_ASKS = int(Status.ASKS)
_OUT_OF_RANGE = "FeatureError: a row number is out of range"
_CACHE: Tag = (-2, 0)  # of the exchange that fills a cache: no epoch has it


class GPUExchange(Losing):
    """Gathers rows from the GPUs that have them, over NCCL. All ranks make it, and call it in lockstep.

    One exchange answers all requests of all ranks for one batch. The GPU sorts the ids by the rank that has their rows,
    and leaves out those that come again, where that pays. Ranks tell each other how many rows they want, and which, and
    send at once as many as exchanges before let expect (see ``Terms``), while the host finds out how many are wanted.
    The rest, if any, follows in parts: while one is on its way, the next one is put together, and the own rows are
    copied. Not for several threads at once (``manyhop.pipeline`` keeps them in order).

    Args:
        name: for errors.
        timeout: seconds to wait for other ranks.

    Raises:
        InputError: there is not a GPU of its own for every rank.
        RankError: ranks did not come in time.
    """

    _numbers = itertools.count()
    _of_all = (ExchangeEndedError, FeatureError)

    def __init__(self, name: str, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        from manyhop.system.triton_launch import INTERPRETED

        self.world: World = init(timeout=timeout)
        self.traffic = Traffic()
        self._name, self._timeout, self._store_key = name, timeout, f"gpu exchange/{next(self._numbers)}"
        self._device = torch.device("cpu") if INTERPRETED else check_gpus(self.world, name, timeout=timeout)
        self._others = self.world.world_size - 1
        self._flight = Flight(self.world.rank, self.world.world_size, self._device, timeout)
        self._terms, self._repeats = Terms(self._others), Repeats()
        self._scratch, self._buffers = Kept(torch.int32, self._device), Buffers(self._device)
        self._pattern: Pattern | None = None
        self._last: _Told | None = None
        self._peers: Peers | None = None
        self._side: Any = None
        self._done: Any = None
        self._stream_key: Any = None
        self._stream: Any = None
        if self._device.type == "cuda":
            self._side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            self._done = self._side.record_event()
        for kernel in [marker(True, False), marker(False, False), placer(False), *usual_kernels()]:
            kernel.prepare(self._device)
        if not self.world.is_alone:
            self._peers = Peers(self._device, timeout)
            with self._losing((-1, -1)), self._on_device():
                self._tell(Status.ASKS, (-1, -1), "").wait()  # NCCL connects the ranks

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
        with self._losing(tag):
            if self._is_current():
                return self._gather(requests, tag)
            with torch.cuda.device(self._device):  # which threads do not have of themselves
                return self._gather(requests, tag)

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
        for looks_for_repeats in (True, False):
            marker(looks_for_repeats, True).prepare(self._device)
        rows = iter(self.gather(requests, _CACHE))
        for (sources, _), hot in zip(hottest, sets, strict=True):
            for source in sources:
                source.hot, source.hot_rows = hot, next(rows)

    def end(self, tag: Tag, failure: str = "") -> None:
        """Tell the other ranks that this one will not come to exchange ``tag``, nor any after it in this epoch.

        They get a RankError if they come to it themselves. Does not wait for them.
        """
        if self._peers is not None:
            with self._losing(tag), self._on_device():
                self._last = self._tell(Status.FAILED if failure else Status.LEFT, tag, failure)

    def begin(self) -> None:
        """Before the first exchange of an epoch: wait until the others know that this rank has left the one before."""
        if self._ended is not None:
            raise RankError(str(self._ended), ranks=self._ended.ranks)
        last, self._last = self._last, None
        if last is not None:
            with self._losing((-1, -1)), self._on_device():
                last.wait()

    def close(self) -> None:
        """Give the connections back, unless the other ranks have still to read something. All ranks call it."""
        peers = self._end_all()
        if peers is not None and (self._last is None or self._last.landed()):
            peers.close()

    def leave(self) -> None:
        """At the end of the run: the same, whatever the other ranks do.

        NCCL's connections then end with the process group, as to give them back takes all ranks, which may still wait
        elsewhere to hear that one has failed.
        """
        if self._device.type == "cpu":
            self.close()
        else:
            self._end_all()

    def _end_all(self) -> Peers | None:
        """No further exchanges; the connections that there were."""
        peers, self._peers = self._peers, None
        self._pattern = None  # and the tensors that it keeps
        self._ended = self._ended or RankError(f"{self._name}: the exchange is closed.")
        return peers

    # The steps of an exchange

    def _gather(self, requests: Sequence[RowRequest], tag: Tag) -> list[Tensor]:
        pattern = self._pattern
        if pattern is None or not pattern.fits(requests):
            pattern = self._pattern = Pattern(requests)
        stream = self._follow()
        try:
            groups, outs = make_groups(requests, pattern, self._scratch, self._device)
            if len(groups) <= MOST_GROUPS:
                self._exchange(groups, pattern.signature, tag, stream)
            else:
                for begin in range(0, len(groups), MOST_GROUPS):
                    self._exchange(groups[begin : begin + MOST_GROUPS], pattern.signature + begin, tag, stream)
        finally:
            self._let_follow(stream)
        return outs

    def _exchange(self, groups: list[Group], signature: int, tag: Tag, stream: Any) -> None:
        flight, terms, rank = self._flight, self._terms, self.world.rank
        id_bytes = groups[0].id_bytes if groups else 8
        shares = terms.shares(signature, [group.widths for group in groups], id_bytes)
        transfer = Transfer(self._peers, rank, groups, flight, shares, terms.ahead, self._buffers, stream)
        self._repeats.decide(signature, groups)
        flight.prepare(terms.room, len(groups))
        if groups:
            enqueue_routes(groups, rank, flight, shares, tag, signature)
        else:
            flight.write(make_headers(Status.ASKS, tag, signature, "", [0] * self._others))
        flight.start(self._peers, wait=True)
        transfer.send_ahead()
        flight.wait()
        try:
            needs = self._see(groups, signature, tag)
        except self._of_all:
            transfer.give_up()
            raise
        transfer.send_rest(needs)
        transfer.finish()
        self._count(groups)

    def _see(self, groups: list[Group], signature: int, tag: Tag) -> list[int]:
        """What the host has been told; what follows from it for the next exchanges is noted.

        Returns:
            ``[groups]``: the most rows that any rank wants of another one.

        Raises:
            FeatureError: an id is out of range.
            RankError: another rank failed, left or is out of step.
        """
        said, needs, wrong = self._flight.said, [], None
        most = said[:, NEEDS : NEEDS + len(groups)].max(axis=0, initial=0).tolist()
        for group, state, need in zip(groups, self._flight.said_state[: len(groups)].tolist(), most, strict=True):
            bad = state.pop()
            group.see(state)
            needs.append(max(need, *state[1:-2], 0))
            if bad and wrong is None:
                wrong = out_of_range(group.request, bad - 1, group.request.source.num_rows)
        in_step = [_ASKS, *tag, signature]
        all_in_step = wrong is None and said[:, : len(in_step)].tolist() == [in_step] * self._others
        if all_in_step and groups and tag != _CACHE:
            self._terms.learn(signature, needs, [group.widths for group in groups], groups[0].id_bytes)
        if wrong is not None:
            raise wrong
        if not all_in_step:
            self._complain(signature, tag)
        self._repeats.learn(signature, groups)
        return needs

    def _complain(self, signature: int, tag: Tag) -> None:
        headers = [torch.from_numpy(header) for header in self._flight.said[:, :HEADER_WORDS]]
        for header in headers:
            if header[0] == Status.FAILED and not says_why(header):  # the GPU has found a wrong id
                header.copy_(make_headers(Status.FAILED, tag, signature, _OUT_OF_RANGE, [0])[0])
        headers.insert(self.world.rank, make_headers(Status.ASKS, tag, signature, "", [0])[0])
        compare_headers(self._name, torch.stack(headers), self.world.rank, tag)

    def _count(self, groups: list[Group]) -> None:
        for group in groups:
            ends = group.ends
            rows = ends[-3] - ends[0]
            self.traffic.rows_received += rows
            self.traffic.bytes_received += rows * sum(group.widths)
            self.traffic.rows_cached += ends[-1] - ends[-2]

    def _tell(self, status: Status, tag: Tag, text: str) -> _Told:
        """Take part in an exchange that this rank wants nothing of. Does not wait for it."""
        ranks, stride = self.world.world_size, self._terms.ahead
        flight = Flight(self.world.rank, ranks, self._device, self._timeout)
        with self._aside():
            stream = self._follow()
            flight.prepare(self._terms.room, 0)
            flight.write(make_headers(status, tag, 0, text, [0] * self._others))
            work = flight.start(self._peers, wait=False)
            if stream is not None:
                enqueue_serve([], flight, self._terms.shares(0, [], 8), 0, 0, stream)
            sent, received = self._buffers.take(self._others * stride)
            sizes = [0 if rank == self.world.rank else stride for rank in range(ranks)]
            ahead = self._peers.swap(received, sent, sizes, sizes, wait=False) if stride and self._peers else None
            self._let_follow(stream)
        return _Told(flight, [each for each in (work, ahead) if each is not None], self._done)

    def _aside(self) -> AbstractContextManager[Any]:
        """In the body, the current stream is one that nobody else uses."""
        return contextlib.nullcontext() if self._side is None else torch.cuda.stream(self._side)

    def _follow(self) -> Any:
        """The current stream (``None`` without a GPU), which goes on where the exchange before has ended."""
        if self._device.type == "cpu":
            return None
        key = torch._C._cuda_getCurrentStream(self._device.index)
        if key != self._stream_key:
            self._stream_key, self._stream = key, torch.cuda.current_stream(self._device)  # to make it takes 10 us
        self._stream.wait_event(self._done)
        return self._stream

    def _let_follow(self, stream: Any) -> None:
        """The next exchange, on whatever stream, goes on where ``stream`` is now."""
        if stream is not None:
            self._done.record(stream)

    def _is_current(self) -> bool:
        return self._device.type == "cpu" or torch.cuda.current_device() == self._device.index

    def _on_device(self) -> AbstractContextManager[Any]:
        """In the body, this rank's GPU is the current one."""
        return contextlib.nullcontext() if self._is_current() else torch.cuda.device(self._device)

    def _hang_up(self) -> None:
        """Close the connections, which wakes the ranks that wait for this one; kernels that wait on this GPU end."""
        peers, self._peers, self._last = self._peers, None, None
        if peers is not None:
            peers.abort()


@dataclass
class _Told:
    """What the others are told, on its way."""

    flight: Flight
    works: list[Any]
    """To wait for, where there is no GPU."""
    sent: Any
    """An event, where there is one."""

    def wait(self) -> None:
        """Wait until all ranks have come.

        Raises:
            RuntimeError: a rank is gone, or late.
        """
        for work in self.works:
            work.wait()
        self.flight.wait()

    def landed(self) -> bool:
        """Whether nobody has to be waited for any more."""
        return all(work.is_completed() for work in self.works) and (self.sent is None or self.sent.query())
