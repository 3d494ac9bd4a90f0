"""A progress bar on stderr."""

from __future__ import annotations

import sys
import threading
import time

from manyhop._units import in_units


class Progress:
    """One line that says how much is done; thread-safe. Shown if asked, and on a terminal, after a second."""

    def __init__(self, title: str, total_bytes: int, *, show: bool | None = None) -> None:
        self._title, self._total = title, total_bytes
        self._show = sys.stderr.isatty() if show is None else show
        self._patient = show is None
        self._lock = threading.Lock()
        self._done = 0
        self._begin = self._latest = time.perf_counter()
        self._written = False

    def add(self, nbytes: int) -> None:
        """Count ``nbytes`` more as done."""
        with self._lock:
            self._done += nbytes
            now = time.perf_counter()
            if self._show and now - self._latest > 0.2 and (now - self._begin > 1 or not self._patient):
                self._write(now)

    def close(self) -> None:
        """Write the last state and end the line."""
        with self._lock:
            if self._written or (self._show and not self._patient):
                self._write(time.perf_counter())
                sys.stderr.write("\n")
                sys.stderr.flush()
                self._written = False

    def _write(self, now: float) -> None:
        share = self._done / self._total if self._total else 1.0
        filled = int(share * 20)
        speed = self._done / max(now - self._begin, 1e-9)
        sys.stderr.write(
            f"\r{self._title} [{'#' * filled}{'.' * (20 - filled)}] {share:4.0%} of {in_units(self._total)}, "
            f"{in_units(speed)}/s "
        )
        sys.stderr.flush()
        self._latest, self._written = now, True
