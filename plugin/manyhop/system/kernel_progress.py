"""Compilation of kernels: what users see of it, and how long threads were at it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread
from time import perf_counter
from typing import NamedTuple


class Compilation(NamedTuple):
    """When a thread compiled kernels, or waited for them."""

    thread: str
    """Its name."""

    start: float
    """Seconds on the clock of ``time.perf_counter``."""

    end: float
    """Seconds on the same clock."""


compilations: list[Compilation] = []
"""Those of all threads so far, a few per kernel, in the order of their ends."""


@contextmanager
def compiling() -> Iterator[None]:
    """In the body, this thread compiles kernels, loads them from the disk, or waits for another one that does."""
    start = perf_counter()
    try:
        yield
    finally:
        compilations.append(Compilation(current_thread().name, start, perf_counter()))


def compiled_within(thread: str, start: float, end: float) -> list[Compilation]:
    """Return the compilations of a thread that overlap with an interval of ``time.perf_counter``."""
    return [c for c in compilations if c.thread == thread and c.start < end and start < c.end]


class KernelProgress:
    """Counts the kernels that are compiled: a line on a terminal that changes, elsewhere one line per process. Only the
    first rank of a node shows them.

    Args:
        kind: of the kernels.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._done = 0
        self._total = 0
        self._open = False
        self._begin: float | None = None
        """When the kernels that are announced on a pipe began to compile."""

    def expect(self, count: int) -> None:
        """Show that ``count`` kernels are about to be compiled."""
        self._total = self._done + count

    def begin(self, name: str) -> None:
        """Count the next kernel, which is about to be compiled."""
        self._done += 1
        self._total = max(self._total, self._done)
        self._show(f"{self._done}/{self._total} ({name})")

    def compiled(self, name: str) -> None:
        """Count a compiled kernel, of an unknown number."""
        self._done += 1
        self._show(f"{self._done} ({name})")

    def _show(self, count: str) -> None:
        from manyhop.system.progress import is_first_of_node  # on top, it would be a source of all CPU kernels

        if sys.stderr is None or not is_first_of_node():
            return
        text = f"manyhop: compiling {self._kind} kernels {count}"
        if sys.stderr.isatty():
            print(f"\r\033[K{text} ...", end="", file=sys.stderr, flush=True)
            self._open = True
        elif self._done == 1:
            self._begin = perf_counter()
            print(f"{text}, once on this machine", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clear the line, or report on a pipe how long it took, once all kernels are compiled."""
        if self._begin is not None and self._done >= self._total:
            seconds, self._begin = max(1, round(perf_counter() - self._begin)), None
            print(f"manyhop: compiling {self._kind} kernels: done in {seconds} s", file=sys.stderr, flush=True)
        if self._open:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self._open = False
