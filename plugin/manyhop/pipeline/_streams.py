"""Batches made on a GPU: a stream per thread, the hand-over to the caller's stream, times of what the GPU does."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.cuda import Event, Stream

from manyhop.pipeline._stats import Stage, Stats

T = TypeVar("T")

_PLAIN = (str, bytes, int, float, bool, complex, type(None), torch.dtype, torch.device, type, ModuleType)


class OnStream(NamedTuple, Generic[T]):
    """A batch that a stream of ours has been told to make."""

    value: T
    ready: Event


class Streams:
    """The streams of one loader.

    The stream of a thread has priority over the training step, whose kernels would otherwise hold up the next batch,
    which is small work. Times of stages are those of the GPU, between events.

    Args:
        device: the GPU.
        stats: where the times go.
        backlog: batches that the caller's stream may not have worked off when another one is handed out; the caller
            waits for older ones, since a host far ahead would hold the memory of all of them.
    """

    def __init__(self, device: torch.device, stats: Stats, *, backlog: int) -> None:
        self.device, self._stats, self._backlog = device, stats, backlog
        self._lock = threading.Lock()
        self._streams: list[tuple[weakref.ref[threading.Thread], Stream]] = []
        self._mine = threading.local()
        self._handed: deque[Event] = deque()
        self._intervals: deque[_Interval] = deque()
        self._since = self.mark(torch.cuda.current_stream(device))
        self._since.synchronize()
        self._clock = _Clock(self._since, perf_counter())

    def begin(self) -> None:
        """An iteration begins: batches see what the caller's stream has been told so far, such as to move features."""
        since = Event()  # type: ignore[no-untyped-call]  # of torch
        since.record(torch.cuda.current_stream(self.device))
        self._since = since

    def synchronize(self) -> None:
        """Wait until the GPU has done all that it was told, by anybody."""
        torch.cuda.synchronize(self.device)

    def here(self) -> AbstractContextManager[None]:
        """In the body, this thread works on its own stream."""
        mine = self._mine
        stream: Stream | None = getattr(mine, "stream", None)
        if stream is None:
            stream = mine.stream = self._stream()
            mine.since = None
        if mine.since is not self._since:
            mine.since = self._since
            stream.wait_event(mine.since)
        return torch.cuda.stream(stream)

    def _stream(self) -> Stream:
        """A stream for this thread; memory that torch keeps for the stream of a thread that has ended is used again."""
        me = weakref.ref(threading.current_thread())
        with self._lock:
            for i, (thread, stream) in enumerate(self._streams):
                owner = thread()
                if owner is None or not owner.is_alive():
                    self._streams[i] = me, stream
                    return stream
            stream = Stream(self.device, priority=-1)  # type: ignore[no-untyped-call]
            self._streams.append((me, stream))
            return stream

    # From thread to caller

    def hand_over(self, value: T) -> OnStream[T]:
        """Within ``here``: the batch is complete once the stream gets here."""
        return OnStream(value, self.mark())

    def adopt(self, made: OnStream[T]) -> T:
        """Within ``here``: this thread goes on with what another one has made."""
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(made.ready)
        for tensor in tensors_in(made.value):
            _record(tensor, stream)
        return made.value

    def receive(self, made: OnStream[T], known: Collection[int] = ()) -> T:
        """In the caller: its stream waits for the batch, whose memory is not used again before that stream is done.

        ``known`` are the ids of objects that are not the loader's, and are passed by.
        """
        stream = torch.cuda.current_stream(self.device)
        asked = self.mark(stream)
        stream.wait_event(made.ready)
        for tensor in tensors_in(made.value, known):
            _record(tensor, stream)
        self._intervals.append(_Interval((), None, "", asked, made.ready))
        self._handed.append(asked)
        return made.value

    def settle(self) -> None:
        """In the caller: wait until its stream has few batches left to work off."""
        while len(self._handed) > self._backlog:
            self._handed.popleft().synchronize()
        self._take_times(wait=False)

    # Times

    def mark(self, stream: Stream | None = None) -> Event:
        """An event now, on a stream (this thread's current one)."""
        event = Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    def took(self, batches: Sequence[int], stage: Stage, start: Event, end: Event) -> None:
        """The GPU has been told to do a stage between two events, for several batches at once: an equal part each."""
        thread = f"GPU of {threading.current_thread().name}"
        self._intervals.append(_Interval(batches, stage, thread, start, end))

    def forget_times(self) -> None:
        """What was done so far is of no interest."""
        self._intervals.clear()

    def take_times(self) -> None:
        """Put all times into the statistics; waits for the GPU."""
        self._take_times(wait=True)

    def _take_times(self, wait: bool) -> None:
        with self._lock:
            while self._intervals:
                interval = self._intervals[0]
                for event in (interval.end, interval.start):
                    if wait:
                        event.synchronize()
                    elif not event.query():  # type: ignore[no-untyped-call]
                        return
                self._intervals.popleft()
                start, end = self._clock(interval.start), self._clock(interval.end)
                if interval.stage is None:
                    self._stats.stalled(start, end)
                    continue
                part = (end - start) / len(interval.batches)
                for i, batch in enumerate(interval.batches):
                    self._stats.record(batch, interval.stage, start + i * part, start + (i + 1) * part, interval.thread)

    def __reduce__(self) -> Any:
        raise TypeError("streams belong to one process")


class _Interval(NamedTuple):
    """Work of the GPU between two events. Of no stage: the caller's stream waited from the first to the second, if the
    second came later."""

    batches: Sequence[int]
    stage: Stage | None
    thread: str
    start: Event
    end: Event


class _Clock:
    """Events -> seconds of ``time.perf_counter``, from one to the next: only small differences are exact."""

    def __init__(self, event: Event, seconds: float) -> None:
        self._event, self._seconds = event, seconds

    def __call__(self, event: Event) -> float:
        """When the event, which is over, happened."""
        self._seconds += self._event.elapsed_time(event) * 1e-3
        self._event = event
        return self._seconds


def tensors_in(value: Any, known: Collection[int] = ()) -> Iterator[Tensor]:
    """All tensors in nested containers and in attributes of objects; nothing of objects whose ``id`` is known."""
    stack, seen = [value], set(known)
    while stack:
        value = stack.pop()
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield value
        if isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list | tuple | set):
            stack.extend(value)
        elif attributes := getattr(value, "__dict__", None):
            stack.extend(attributes.values())


def _record(tensor: Tensor, stream: Stream) -> None:
    """Let the memory of a tensor be used again only when ``stream`` has passed this point at the time it is freed."""
    if not tensor.is_cuda:
        return
    if tensor.layout is torch.strided:
        tensor.record_stream(stream)
    elif tensor.layout is torch.sparse_coo:
        _record(tensor._indices(), stream)
        _record(tensor._values(), stream)
    else:
        by_row = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
        parts = (tensor.crow_indices, tensor.col_indices) if by_row else (tensor.ccol_indices, tensor.row_indices)
        for part in parts:
            _record(part(), stream)
        _record(tensor.values(), stream)
