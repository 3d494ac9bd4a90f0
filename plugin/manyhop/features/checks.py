"""Row numbers that a GPU has found to be out of range: noticed late, but surely."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.features.requests import RowRequest, out_of_range


@dataclass(frozen=True)
class Suspect:
    """A gather whose row numbers a kernel checks, on its way."""

    flag: Tensor
    """``[1] int32``, which the kernel writes and the host reads: 1 if a row number is out of range."""

    done: torch.cuda.Event | None
    """When the kernel has ended; ``None``: it has."""

    requests: Sequence[tuple[RowRequest, int]]
    """What was asked for, and how many rows there are."""


class Checks:
    """Gathers on GPUs whose row numbers are not known to be right. One object may serve several threads.

    A kernel reads no row that does not exist, but the host learns of it only when the kernel has ended. Whoever passes
    a ``Checks`` to :func:`manyhop.features.gather` does not wait for that there, and has to ask here.
    """

    def __init__(self) -> None:
        self._open: deque[Suspect] = deque()

    def add(self, suspect: Suspect) -> None:
        """Note a gather that was enqueued."""
        self._open.append(suspect)

    def __len__(self) -> int:
        """How many have not been looked at, or had not ended."""
        return len(self._open)

    def ask(self, *, wait: bool = False) -> None:
        """Look at the gathers that have ended.

        Args:
            wait: for all of them to end.

        Raises:
            FeatureError: a row number was out of range.
        """
        for _ in range(len(self._open)):
            try:
                suspect = self._open.popleft()
            except IndexError:  # another thread was faster
                return
            if suspect.done is not None and not wait and not suspect.done.query():  # type: ignore[no-untyped-call]
                self._open.append(suspect)
                continue
            if suspect.done is not None:
                suspect.done.synchronize()
            if suspect.flag.item():
                raise _out_of_range(suspect)

    def __del__(self) -> None:
        for suspect in self._open:  # a kernel may still write its flag
            with contextlib.suppress(RuntimeError):
                if suspect.done is not None:
                    suspect.done.synchronize()


def _out_of_range(suspect: Suspect) -> FeatureError:
    for request, num_rows in suspect.requests:
        bad = ((request.index < 0) | (request.index >= num_rows)).nonzero()
        if bad.numel():
            return out_of_range(request, int(bad[0]), num_rows)
    names = ", ".join(request.name for request, _ in suspect.requests)
    return FeatureError(f"Expected indices of existing rows for {names}, got others. Keep them unchanged while in use.")
