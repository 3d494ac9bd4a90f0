"""What ranks say to each other before rows: headers on their way, and what the host learns of its own ids meanwhile."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from manyhop.features._headers import HEADER_WORDS, Tag

MOST_GROUPS = 64
"""Indices that one exchange serves; headers are of one size, whatever they say."""

_SPIN_SECONDS = 0.0005  # asking again at once for so long, then now and then


class Flight:
    """Headers on their way, and what this rank knows of its own ids; seen by the host in one copy. Once it has been
    waited for, it can be used again.

    Attributes:
        sent: ``[ranks, HEADER_WORDS + most groups] int64``: the header for each rank.
        ends: ``[most groups, ranks + 2] int64``: where the buckets of each group end.
        bad: ``[most groups] int64``: a position with a wrong id, plus 1, or 0.
        seen, seen_ends, seen_bad: what came of the other ranks, and the above, on the host; valid after ``wait``.
    """

    def __init__(self, ranks: int, device: torch.device, timeout: float) -> None:
        words = HEADER_WORDS + MOST_GROUPS
        self._device, self._timeout = device, timeout
        self.sent = torch.zeros(ranks, words, dtype=torch.int64, device=device)
        self._state = torch.zeros(ranks * words + MOST_GROUPS * (ranks + 3), dtype=torch.int64, device=device)
        self._received, self.ends, self.bad = self._split(self._state, ranks)
        pinned = device.type == "cuda"
        self._host = torch.empty(self._state.numel(), dtype=torch.int64, pin_memory=pinned)
        self._headers = torch.empty(ranks, HEADER_WORDS, dtype=torch.int64, pin_memory=pinned)
        self._words = self._headers.numpy()
        self.seen, self.seen_ends, self.seen_bad = self._split(self._host, ranks)
        self._work: Any = None
        self._event: Any = None

    @staticmethod
    def _split(state: Tensor, ranks: int) -> tuple[Tensor, Tensor, Tensor]:
        words = ranks * (HEADER_WORDS + MOST_GROUPS)
        received, ends, bad = torch.split(state, [words, MOST_GROUPS * (ranks + 2), MOST_GROUPS])
        return received.view(ranks, -1), ends.view(MOST_GROUPS, ranks + 2), bad

    def fill(self, headers: Tensor) -> None:
        """Write the headers, ``[ranks, HEADER_WORDS] int64`` on the CPU; nothing is known of ids yet."""
        self._headers.copy_(headers)
        self.sent[:, :HEADER_WORDS].copy_(self._headers, non_blocking=True)
        self.bad.zero_()

    def say(self, tag: Tag, signature: int, parts: int) -> None:
        """Write what differs from one exchange to the next."""
        self._words[:, 1:4] = (*tag, signature)
        self._words[:, 5] = parts
        self.sent[:, :HEADER_WORDS].copy_(self._headers, non_blocking=True)
        self.bad.zero_()

    def start(self, group: Any) -> None:
        """Enqueue the exchange of headers, and the copy to the host."""
        import torch.distributed as dist

        if group is None:
            self._received.copy_(self.sent)
        else:
            self._work = dist.all_to_all_single(self._received.view(-1), self.sent.view(-1), group=group, async_op=True)
        if self._device.type == "cuda":
            if self._work is not None:
                self._work.wait()  # of the current stream, not of the host
            self._host.copy_(self._state, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def landed(self) -> bool:
        """Whether ``wait`` would not wait."""
        if self._event is not None:
            return bool(self._event.query())
        return self._work is None or self._work.is_completed()

    def wait(self) -> None:
        """Wait until the headers of all ranks have come.

        Raises:
            RuntimeError: a rank is gone, or late.
        """
        if self._event is None:
            if self._work is not None:
                self._work.wait()
            self._host.copy_(self._state)
            return
        begin = time.monotonic()
        while not self._event.query():
            waited = time.monotonic() - begin
            if waited > self._timeout:
                raise RuntimeError(f"nothing came for {self._timeout:g} s")
            time.sleep(0 if waited < _SPIN_SECONDS else _SPIN_SECONDS / 10)
