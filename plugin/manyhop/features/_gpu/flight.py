"""What ranks say to each other before rows: headers on their way, and what the host learns of its own ids meanwhile."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from manyhop.features._headers import HEADER_WORDS, Tag

MOST_GROUPS = 64
"""Indices that one exchange serves; headers are of one size, whatever they say."""

NEEDED = 4
"""The word of a header that says how much room for ids its rank would have needed."""

_SPIN_SECONDS = 0.0005  # asking again at once for so long, then now and then


class Flight:
    """Headers on their way, with as many ids as they have room for. Once it has been waited for, it can be used again.

    Attributes:
        room: int64 for ids after each header.
        sent: ``[ranks, HEADER_WORDS + MOST_GROUPS + room] int64``: what goes to each rank.
        received: the same: what has come from each rank.
        ends: ``[MOST_GROUPS, ranks + 2] int64``: where the buckets of each group end.
        bad: ``[MOST_GROUPS] int64``: a position with a wrong id, plus 1, or 0.
        seen, seen_ends, seen_bad: the headers that have come, and the above, on the host; valid after ``wait``.
    """

    def __init__(self, ranks: int, device: torch.device, timeout: float, headers: Tensor, room: int) -> None:
        self.room, self._device, self._timeout = room, device, timeout
        pinned = device.type == "cuda"
        self.sent = torch.zeros(ranks, HEADER_WORDS + MOST_GROUPS + room, dtype=torch.int64, device=device)
        self.received = torch.zeros_like(self.sent)
        self._state = torch.zeros(MOST_GROUPS * (ranks + 3), dtype=torch.int64, device=device)
        self.ends, self.bad = self._split(self._state, ranks)
        self._host = torch.empty(self._state.numel(), dtype=torch.int64, pin_memory=pinned)
        self.seen_ends, self.seen_bad = self._split(self._host, ranks)
        self.seen = torch.empty(ranks, HEADER_WORDS + MOST_GROUPS, dtype=torch.int64, pin_memory=pinned)
        self._headers = torch.empty(ranks, HEADER_WORDS, dtype=torch.int64, pin_memory=pinned).copy_(headers)
        self._words = self._headers.numpy()
        self._work: Any = None
        self._event: Any = None
        # The streams that it is used on are not this one, maybe.
        self._made: Any = torch.cuda.current_stream(device).record_event() if pinned else None

    @staticmethod
    def _split(state: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
        ends, bad = torch.split(state, [MOST_GROUPS * (ranks + 2), MOST_GROUPS])
        return ends.view(MOST_GROUPS, ranks + 2), bad

    def say(self, tag: Tag, signature: int, parts: int) -> None:
        """Write what differs from one exchange to the next."""
        self._words[:, 1:4] = (*tag, signature)
        self._words[:, 5] = parts

    def load(self) -> None:
        """Enqueue the copy of the headers to the GPU; nothing is known of ids then."""
        if self._made is not None:
            torch.cuda.current_stream(self._device).wait_event(self._made)
            self._made = None
        self.sent[:, :HEADER_WORDS].copy_(self._headers, non_blocking=True)
        self.bad.zero_()

    def start(self, group: Any) -> None:
        """Enqueue the exchange."""
        import torch.distributed as dist

        if group is None:
            self.received.copy_(self.sent)
        else:
            self._work = dist.all_to_all_single(self.received.view(-1), self.sent.view(-1), group=group, async_op=True)
        if self._device.type == "cuda":
            if self._work is not None:
                self._work.wait()  # of the current stream, not of the host
            self._event = torch.cuda.current_stream().record_event()

    def arrive(self) -> None:
        """What is enqueued from now on finds what has come.

        Raises:
            RuntimeError: a rank is gone, or late: without a GPU.
        """
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)
        elif self._work is not None:
            self._work.wait()

    def landed(self) -> bool:
        """Whether ``wait`` would not wait."""
        if self._event is not None:
            return bool(self._event.query())
        return self._work is None or bool(self._work.is_completed())

    def wait(self) -> None:
        """Wait until the headers of all ranks have come.

        Raises:
            RuntimeError: a rank is gone, or late.
        """
        self.arrive()
        self.seen.copy_(self.received[:, : self.seen.shape[1]], non_blocking=True)
        self._host.copy_(self._state, non_blocking=True)
        if self._event is None:
            return
        event = torch.cuda.current_stream().record_event()
        begin = time.monotonic()
        while not event.query():
            waited = time.monotonic() - begin
            if waited > self._timeout:
                raise RuntimeError(f"nothing came for {self._timeout:g} s")
            time.sleep(0 if waited < _SPIN_SECONDS else _SPIN_SECONDS / 10)

    def room_needed(self) -> int:
        """Room that all ids of this exchange would have fitted into, of all ranks; the same on all. After ``wait``."""
        needed = int(self.seen[:, NEEDED].max())
        return self.room if needed <= self.room else -(-needed * 9 // 8 // 512) * 512
