"""Progress and times of the compilation of kernels."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread
from time import perf_counter
from typing import NamedTuple


class Compilation(NamedTuple):
    """An interval during which a thread compiled kernels or waited for them."""

    thread: str
    """Name of the thread."""

    start: float
    """Seconds on the clock of ``time.perf_counter``."""

    end: float
    """Seconds on the same clock."""


compilations: list[Compilation] = []
"""Compilations of all threads, in the order of their ends."""


@contextmanager
def compiling() -> Iterator[None]:
    """Record the body as a compilation of this thread."""
    start = perf_counter()
    try:
        yield
    finally:
        compilations.append(Compilation(current_thread().name, start, perf_counter()))


def compiled_within(thread: str, start: float, end: float) -> list[Compilation]:
    """Return the compilations of a thread that overlap with an interval of ``time.perf_counter``."""
    return [c for c in compilations if c.thread == thread and c.start < end and start < c.end]


class KernelProgress:
    """Count the compiled kernels in a line of a terminal, or in one line of a pipe per process.

    Only the first rank of a node shows it.

    Args:
        kind: of the kernels.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._done = 0
        self._total = 0
        self._open = False
        self._begin: float | None = None
        """Start of a compilation that was announced on a pipe."""

    def expect(self, count: int) -> None:
        """Set the number of kernels to compile."""
        self._total = self._done + count

    def begin(self, name: str) -> None:
        """Count the next kernel."""
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
        """Clear the line once all kernels are compiled, or report the seconds on a pipe."""
        if self._begin is not None and self._done >= self._total:
            seconds, self._begin = max(1, round(perf_counter() - self._begin)), None
            print(f"manyhop: compiling {self._kind} kernels: done in {seconds} s", file=sys.stderr, flush=True)
        if self._open:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self._open = False
