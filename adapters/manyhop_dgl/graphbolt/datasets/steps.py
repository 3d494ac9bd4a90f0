"""What a long preprocessing is at, on stderr."""

from __future__ import annotations

import sys
import time

_WORTH_SHOWING = 64 << 20
"""Bytes of input from which on steps are named: less is done before a line could be read."""


class Steps:
    """Reports the steps of a long operation as they begin.

    Args:
        title: of all of it.
        nbytes: size of the input.
    """

    def __init__(self, title: str, nbytes: int) -> None:
        self._title, self._show = title, nbytes >= _WORTH_SHOWING
        self._begin = time.perf_counter()

    def begin(self, step: str) -> None:
        """Report the beginning of a step."""
        self._write(f"{step} ...")

    def end(self) -> None:
        """Report the duration of all steps."""
        self._write(f"done in {time.perf_counter() - self._begin:.1f} s")

    def _write(self, text: str) -> None:
        if self._show:
            print(f"{self._title}: {text}", file=sys.stderr, flush=True)
