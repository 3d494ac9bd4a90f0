"""What ranks say to each other before rows: headers and ids on their way, and what the host learns of them."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from manyhop.features.exchange.gpu.kept import Kept
from manyhop.features.exchange.gpu.peers import Peers
from manyhop.features.exchange.headers import HEADER_WORDS

MOST_GROUPS = 64
"""Indices that one exchange serves; headers are of one size, whatever they say."""

LENGTHS = HEADER_WORDS
"""The words of a header, one per group, that say how many rows its rank is asked for."""

NEEDS = LENGTHS + MOST_GROUPS
"""Likewise: the most rows that any rank is asked for."""

IDS = NEEDS + MOST_GROUPS
"""Where the ids begin."""

_SPIN_SECONDS = 0.0005  # asking again at once for so long, then now and then


class Flight:
    """Headers on their way, with as many ids as they have room for. Once it has been waited for, it can be used again.

    Args:
        rank: this one.
        ranks: how many there are.
        device: this rank's.
        timeout: seconds to wait for other ranks.

    Attributes:
        words: int64 of a header and its ids.
        sent: ``[others, words] int64``: what goes to each other rank, ascending.
        received: the same: what has come from each.
        sent_at, received_at: their addresses.
        state_at: address of ``[MOST_GROUPS, ranks + 3] int64``: ids of each bucket; a position with a wrong id, plus 1,
            or 0. All are 0 at first.
        said: ``[others, IDS] int64``: the headers that have come, on the host; valid after ``wait``.
        said_state: the state likewise.
    """

    def __init__(self, rank: int, ranks: int, device: torch.device, timeout: float) -> None:
        self.rank, self.ranks, self._device, self._timeout = rank, ranks, device, timeout
        pinned = device.type == "cuda"
        self._said = torch.empty(max(1, ranks - 1), IDS, dtype=torch.int64, pin_memory=pinned)
        self._said_state = torch.empty(MOST_GROUPS, ranks + 3, dtype=torch.int64, pin_memory=pinned)
        self.said, self.said_state = self._said.numpy()[: ranks - 1], self._said_state.numpy()
        self._states = torch.zeros(2, MOST_GROUPS, ranks + 3, dtype=torch.int64, device=device)
        self._states_at = self._states.data_ptr()
        self._used = [0, 0]  # words of them that are not 0 any more
        self._turn = 0
        self._kept = [Kept(torch.int64, device) for _ in range(2)]
        self._make_room(0)
        self._event: Any = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

    def _make_room(self, room: int) -> None:
        self.words = IDS + room
        rows = max(1, self.ranks - 1)  # memory of no bytes has no address
        both = [kept.take(rows * self.words)[: rows * self.words].zero_() for kept in self._kept]
        self.sent, self.received = (each.view(rows, self.words) for each in both)
        self.sent_at, self.received_at = self.sent.data_ptr(), self.received.data_ptr()
        self._flat = both[1], both[0]
        self._sizes = [0 if rank == self.rank else self.words for rank in range(self.ranks)]

    def prepare(self, room: int, groups: int) -> None:
        """Before an exchange, on the current stream.

        Args:
            room: int64 for ids after each header.
            groups: how many indices there are.
        """
        if room != self.words - IDS:
            self._make_room(room)
        states = groups * (self.ranks + 3)
        self._turn = 1 - self._turn  # the other one is cleared by what tells the host
        self._used[self._turn] = states
        self.state_at = self._states_at + 8 * self._turn * MOST_GROUPS * (self.ranks + 3)

    def write(self, headers: Tensor) -> None:
        """Say something that is known on the host: ``[others, HEADER_WORDS] int64``."""
        if self._device.type == "cuda":
            headers = headers.pin_memory()
        self.sent[: self.ranks - 1, :HEADER_WORDS].copy_(headers, non_blocking=True)

    def start(self, peers: Peers | None, *, wait: bool) -> Any:
        """Enqueue the exchange on the current stream.

        Args:
            peers: the other ranks; ``None`` for one that is alone.
            wait: for it, where there is no GPU.

        Returns:
            What to wait for, where there is no GPU; else ``None``.

        Raises:
            RuntimeError: a rank is gone, or late: without a GPU.
        """
        return None if peers is None else peers.swap(*self._flat, self._sizes, self._sizes, wait=wait)

    def report_arguments(self) -> tuple[int, ...]:
        """The kernel's that tells the host what has come; see ``kernels.routes.report``."""
        other = 1 - self._turn
        return (
            self.received_at, self.words, self._said.data_ptr(), IDS, self.ranks - 1, self.state_at,
            self._said_state.data_ptr(), self._used[self._turn],
            self._states_at + 8 * other * MOST_GROUPS * (self.ranks + 3), self._used[other],
        )  # fmt: skip

    def told(self, stream: Any) -> None:
        """The host is told when what has been enqueued on ``stream``, the current one, is done."""
        if self._event is not None:
            self._event.record(stream)

    def wait(self) -> None:
        """Wait until the host has been told.

        Raises:
            RuntimeError: a rank is gone, or late.
        """
        if self._event is None:
            return
        begin = time.monotonic()
        while not self._event.query():
            waited = time.monotonic() - begin
            if waited > self._timeout:
                raise RuntimeError(f"nothing came for {self._timeout:g} s")
            if waited > _SPIN_SECONDS:
                time.sleep(_SPIN_SECONDS / 10)
