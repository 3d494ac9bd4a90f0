"""What users see while kernels are compiled."""

from __future__ import annotations

import sys


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

    def expect(self, count: int) -> None:
        """``count`` kernels are about to be compiled."""
        self._total = self._done + count

    def begin(self, name: str) -> None:
        """The next kernel is about to be compiled."""
        self._done += 1
        self._total = max(self._total, self._done)
        self._show(f"{self._done}/{self._total} ({name})")

    def compiled(self, name: str) -> None:
        """One more kernel is compiled, of a number that is not known."""
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
            print(f"{text}, once on this machine", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Nothing is being compiled any more: clear the line."""
        if self._open:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self._open = False
