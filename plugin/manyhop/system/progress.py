"""A progress bar on stderr."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

from tqdm import tqdm


class _Bar(tqdm):  # type: ignore[misc]
    # Start nothing: tqdm's own lock may start a process of multiprocessing's, tqdm's monitor is a thread.
    _lock = threading.RLock()
    monitor_interval = 0


_BEAT_S = 0.5  # seconds between two looks at the clock while one call runs
_END_S = 5.0  # longest wait for the last line: garbage collected in the bar's thread may wait for a lock of the caller


def is_first_of_node() -> bool:
    """Whether this process is the only one of its node, or the first: launchers number those of a node from 0."""
    return all(os.environ.get(name, "0") == "0" for name in ("LOCAL_RANK", "SLURM_LOCALID"))


class Progress:
    """One line that shows how much is done; thread-safe.

    Args:
        title: what is being done.
        total: how many units there are; ``None``: nobody knows.
        unit: what is counted: ``"B"``, in multiples of 1024, or a noun.
        show: whether to show the bar; ``None``: on a terminal, after ``delay`` seconds, in the first rank of a node.
        delay: see there.
    """

    def __init__(
        self, title: str, total: int | None, *, unit: str = "B", show: bool | None = None, delay: float = 1.0
    ) -> None:
        of_bytes = unit == "B"
        if show is None and not is_first_of_node():
            show = False
        self._lock = threading.Lock()
        self._bar = _Bar(
            desc=title,
            total=total,
            unit=unit if of_bytes else f" {unit}",
            unit_scale=True,
            unit_divisor=1024 if of_bytes else 1000,
            mininterval=0.2,
            miniters=0,
            delay=delay if show is None else 0,
            disable=None if show is None else not show,
        )

    def add(self, count: int) -> None:
        """Count ``count`` more units as done."""
        with self._lock:
            self._bar.update(count)

    def close(self) -> None:
        """Write the last state and end the line."""
        with self._lock:
            self._bar.close()

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Show the seconds that pass while the body works long without a count; it must leave the GIL to others."""
        if not self.may_show:
            yield
            return
        done = threading.Event()
        clock = threading.Thread(target=self._beat, args=(done,), name="manyhop-progress", daemon=True)
        clock.start()
        try:
            yield
        finally:
            done.set()
            clock.join(_END_S)

    def _beat(self, done: threading.Event) -> None:
        while not done.wait(_BEAT_S):
            self.add(0)

    @property
    def may_show(self) -> bool:
        """Whether the bar is shown, now or after its delay."""
        return not self._bar.disable


@contextmanager
def one_call(title: str, nbytes: int) -> Iterator[None]:
    """Show a bar while the body handles ``nbytes`` by one call without the GIL, from two seconds on.

    How far the call is, is not known: the bar counts seconds, and is full when the body has ended without an error.
    """
    bar = Progress(title, nbytes, delay=2.0)
    if not bar.may_show:
        yield
        return
    done: SimpleQueue[int] = SimpleQueue()
    clock = threading.Thread(target=_count_seconds, args=(bar, done), name="manyhop-progress", daemon=True)
    clock.start()
    count = 0
    try:
        yield
        count = nbytes
    finally:
        done.put(count)
        clock.join(_END_S)


def _count_seconds(bar: Progress, done: SimpleQueue[int]) -> None:
    """Show the seconds until the number of bytes that are done arrives."""
    while True:
        try:
            count = done.get(timeout=_BEAT_S)
            break
        except Empty:
            bar.add(0)
    bar.add(count)
    bar.close()
