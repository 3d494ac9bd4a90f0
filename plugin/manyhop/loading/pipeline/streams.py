"""Streams of batches made on a GPU: one per thread, handed over to the caller's stream, with the times of stages."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from time import perf_counter
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.cuda import Event, Stream

from manyhop.loading.pipeline.stats import ON_GPU, Stage, Stats

T = TypeVar("T")

_MANY = 32  # intervals that are looked at together
_AT_ONCE = 4  # batches that an event in the caller's stream stands for, at most

_PLAIN = frozenset({str, bytes, int, float, bool, complex, type(None), torch.dtype, torch.device, type, ModuleType})
_SEQUENCES = (list, tuple, set)
_STRIDED = torch.strided


class OnStream(NamedTuple, Generic[T]):
    """A batch whose work is enqueued on a thread's stream."""

    value: T
    ready: Event
    timed: bool = False
    """Whether a stall for it is measured."""

    together: list[Tensor] | None = None
    """The loader's tensors of batches that are ready at the same time, one per storage, in a list shared by these
    batches. Empty after they were recorded on a stream of the caller."""

    source: Any = None
    """Versions of its rows, and the group that can assemble it again; ``None``: it is always current."""


class Streams:
    """The streams of one loader.

    The stream of a thread has priority over the training step, whose kernels would otherwise delay the small work of
    the next batch. Times of stages are measured on the GPU, between events.

    Args:
        backlog: largest number of batches in progress on the caller's stream when another one is returned. The caller
            waits for older ones, since they hold memory.
    """

    def __init__(self, device: torch.device, stats: Stats, *, backlog: int) -> None:
        self.device, self.stats, self._backlog = device, stats, backlog
        self._lock = threading.Lock()
        self._streams: list[tuple[weakref.ref[threading.Thread], Stream]] = []
        self._mine = threading.local()
        self._handed: deque[tuple[Event, bool, int]] = deque()  # with the number of batches that an event stands for
        self._on_the_way = self._unmarked = 0  # batches of these events, and batches since the last event
        self._spare: list[Event] = []  # to be recorded again: new ones cost more
        self._waited: tuple[Event | None, Stream | None] = None, None
        self._recorded: tuple[Event | None, Stream | None] = None, None
        self._intervals: deque[_Interval] = deque()
        self._known: dict[int, Stream] = {}
        self._since = Event(enable_timing=True)  # type: ignore[no-untyped-call]  # of torch
        self._since.record(torch.cuda.current_stream(device))
        self._since.synchronize()
        self._clock = self._since, perf_counter()  # an event and its seconds of time.perf_counter

    def begin(self) -> None:
        """Begin an iteration: batches follow the work on the caller's stream so far, such as moved features."""
        since = Event()  # type: ignore[no-untyped-call]  # of torch
        since.record(torch.cuda.current_stream(self.device))
        self._since = since

    def synchronize(self) -> None:
        """Wait until the GPU has done all enqueued work, of any stream."""
        torch.cuda.synchronize(self.device)

    def on_stream(self) -> _OnStream:
        """Return a context manager: in its body, this thread works on its own stream."""
        mine = self._mine
        context: _OnStream | None = getattr(mine, "context", None)
        if context is None:
            context = mine.context = _OnStream(self._stream())
            mine.since = None
        if mine.since is not self._since:
            mine.since = self._since
            context.stream.wait_event(mine.since)
        return context

    def _stream(self) -> Stream:
        """Return a stream for this thread, if possible one of a thread that has ended, whose memory torch holds."""
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

    def hand_over(self, value: T, *, timed: bool = False) -> OnStream[T]:
        """Wrap a batch that is complete when this thread's stream arrives here; ``timed``: measure stalls for it."""
        return OnStream(value, self.mark(timed), timed)

    def is_complete(self, made: OnStream[T]) -> bool:
        """Return whether the GPU has done all work of a batch."""
        return bool(made.ready.query())  # type: ignore[no-untyped-call]  # of torch

    def adopt(self, made: OnStream[T]) -> T:
        """Continue with a value of another thread, on this thread's stream."""
        stream: Stream = self._mine.context.stream
        stream.wait_event(made.ready)
        for tensor in tensors_in(made.value):
            _record(tensor, stream)
        return made.value

    def receive(self, made: OnStream[T], tensors_of: Callable[[T], Iterable[Tensor]], times: int = 1) -> T:
        """Return a batch in the caller's thread: its stream waits for the batch, whose memory is reused only after that
        stream is done.

        Args:
            made: the batch.
            tensors_of: returns the loader's tensors in a batch.
            times: number of batches that a measured stall represents.
        """
        stream = self._current()
        ready, waits = self._waited
        is_new = ready is not made.ready or waits is not stream  # else it was ready at the same time as the one before
        self._unmarked += 1
        if is_new or made.timed or self._unmarked >= _AT_ONCE:
            asked = self._event(timed=made.timed)
            asked.record(stream)
            self._handed.append((asked, made.timed, self._unmarked))
            self._on_the_way += self._unmarked
            self._unmarked = 0
            if made.timed:
                self._intervals.append(_Interval(times, None, -1, "", asked, made.ready))
        if is_new:
            stream.wait_event(made.ready)
            self._waited = made.ready, stream
        ready, recorded = self._recorded
        if made.together is None or ready is not made.ready or recorded is not stream:
            self._record_all(made, tensors_of, stream)
        return made.value

    def _record_all(self, made: OnStream[T], tensors_of: Callable[[T], Iterable[Tensor]], stream: Stream) -> None:
        """Record the memory of a batch, and of those that are ready at the same time, on a stream of the caller."""
        if made.together:
            for tensor in made.together:
                _record(tensor, stream)
            made.together.clear()  # the batches alone keep their memory
            self._recorded = made.ready, stream
        else:  # for a second stream, each batch separately
            for tensor in tensors_of(made.value):
                _record(tensor, stream)

    def _event(self, *, timed: bool) -> Event:
        """Return an event to be recorded, an unused one if possible."""
        if not timed:
            with contextlib.suppress(IndexError):  # another thread was faster
                return self._spare.pop()
        return Event(enable_timing=timed)  # type: ignore[no-untyped-call]

    def _current(self) -> Stream:
        """Return the current stream. ``torch.cuda.current_stream`` needs ten times as long."""
        number, _, _ = key = torch._C._cuda_getCurrentStream(self.device.index)
        stream = self._known.get(number)
        if stream is None:
            stream = Stream(stream_id=key[0], device_index=key[1], device_type=key[2])  # type: ignore[no-untyped-call]
            self._known[number] = stream
        return stream

    def settle(self) -> None:
        """Wait, in the caller's thread, until its stream has few batches in progress."""
        while self._on_the_way > self._backlog:
            event, timed, batches = self._handed.popleft()
            self._on_the_way -= batches
            event.synchronize()
            if not timed:
                self._spare.append(event)
        if len(self._intervals) >= _MANY:
            self.take_times(wait=False)

    # Times

    def mark(self, timed: bool = True) -> Event:
        """Record an event on this thread's stream; without its time it costs less."""
        event = Event(enable_timing=timed)  # type: ignore[no-untyped-call]
        event.record(self._mine.context.stream)
        return event

    def took(self, times: int, stage: Stage, batch: int, start: Event, end: Event) -> None:
        """Record a stage of a batch that is enqueued between two events; it represents ``times`` batches."""
        self._intervals.append(_Interval(times, stage, batch, ON_GPU + threading.current_thread().name, start, end))

    def forget_times(self) -> None:
        """Drop the times so far."""
        self._intervals.clear()

    def take_times(self, *, wait: bool = True) -> None:
        """Add the times to the statistics: all, after waiting for the GPU, or those of work that is complete."""
        with self._lock:
            while self._intervals:
                interval = self._intervals[0]
                for event in (interval.end, interval.start):
                    if wait:
                        event.synchronize()
                    elif not event.query():  # type: ignore[no-untyped-call]
                        return
                self._intervals.popleft()
                start, end = self._time_of(interval.start), self._time_of(interval.end)
                if interval.stage is None:
                    self.stats.stalled((end - start) * interval.times)
                else:
                    self.stats.record(interval.batch, interval.stage, start, end, interval.thread, interval.times)

    def _time_of(self, event: Event) -> float:
        """Return the seconds of an event, from those of the event before: only small differences are exact."""
        before, seconds = self._clock
        self._clock = event, seconds + before.elapsed_time(event) * 1e-3
        return self._clock[1]

    def __reduce__(self) -> Any:
        raise TypeError("streams belong to one process")


class _OnStream:
    """A context manager that makes a stream the current one. (torch's needs twenty times as long.)"""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._key = stream.stream_id, stream.device_index, stream.device_type
        self._before: list[tuple[int, tuple[int, int, int]]] = []

    def __enter__(self) -> None:
        device = self._key[1]
        self._before.append((torch._C._cuda_getDevice(), torch._C._cuda_getCurrentStream(device)))
        torch._C._cuda_setStream(*self._key)

    def __exit__(self, *error: object) -> None:
        device, stream = self._before.pop()
        torch._C._cuda_setStream(*stream)
        if device != self._key[1]:
            torch._C._cuda_setDevice(device)


class _Interval(NamedTuple):
    """Work of the GPU between two events, which represents ``times`` batches. Without a stage: the caller's stream
    waited from the first to the second event, if the second is later."""

    times: int
    stage: Stage | None
    batch: int
    thread: str
    start: Event
    end: Event


def tensors_in(value: Any, known: Collection[int] = ()) -> Iterator[Tensor]:
    """Yield all tensors in nested containers and in attributes of objects, except in objects whose ``id`` is known."""
    stack, seen = [value], set(known)
    while stack:
        value = stack.pop()
        kind = type(value)
        if kind in _PLAIN or id(value) in seen:
            continue
        seen.add(id(value))
        if kind is Tensor:
            yield value
        elif isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, _SEQUENCES):
            stack.extend([part for part in value if type(part) not in _PLAIN])
        else:
            if isinstance(value, Tensor) and not hasattr(value, "__tensor_flatten__"):  # else its parts are tensors
                yield value
            if attributes := getattr(value, "__dict__", None):
                stack.append(attributes)


def _record(tensor: Tensor, stream: Stream) -> None:
    """Reuse the memory of a tensor only after ``stream`` has passed the point at which it was freed."""
    if not tensor.is_cuda:
        return
    if tensor.layout is _STRIDED:
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
