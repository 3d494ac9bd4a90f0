"""Messages that ranks exchange before rows: headers with ids, and their reports to the host."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from manyhop.features.exchange.peers import Peers
from manyhop.features.exchange.row_exchange import HEADER_WORDS

MOST_GROUPS = 64
"""Largest number of indices of an exchange: headers have a fixed size."""

LENGTHS = HEADER_WORDS
"""Offset of the numbers of rows requested from the receiver, one per group, in a header."""

NEEDS = LENGTHS + MOST_GROUPS
"""Offset of the largest numbers of rows requested from any rank, one per group."""

IDS = NEEDS + MOST_GROUPS
"""Offset of the ids."""

_SPIN_SECONDS = 0.0005  # poll without pauses for this long


class Flight:
    """An exchange of headers, with as many ids as fit. Reusable after :meth:`wait`.

    Attributes:
        words: size of a header with its ids, in int64.
        sent: ``[others, words] int64``: messages to the other ranks, ascending.
        received: ``[others, words] int64``: messages from the other ranks.
        sent_at, received_at: their addresses.
        state_at: address of ``[MOST_GROUPS, ranks + 3] int64``: ids of each bucket; a position with a wrong id, plus 1,
            or 0. Initially 0.
        reported: ``[others, IDS] int64``: the received headers on the host; valid after ``wait``.
        reported_state: ``[MOST_GROUPS, ranks + 3] int64``: the state on the host; valid after ``wait``.
    """

    def __init__(self, rank: int, ranks: int, device: torch.device, timeout: float) -> None:
        self.rank, self.ranks, self._device, self._timeout = rank, ranks, device, timeout
        pinned = device.type == "cuda"
        self._reported = torch.empty(max(1, ranks - 1), IDS, dtype=torch.int64, pin_memory=pinned)
        self._reported_state = torch.empty(MOST_GROUPS, ranks + 3, dtype=torch.int64, pin_memory=pinned)
        self.reported, self.reported_state = self._reported.numpy()[: ranks - 1], self._reported_state.numpy()
        self._states = torch.zeros(2, MOST_GROUPS, ranks + 3, dtype=torch.int64, device=device)
        self._states_at = self._states.data_ptr()
        self._used = [0, 0]  # words of each that may be nonzero
        self._turn = 0
        self._flat: list[Tensor] = []
        self._resize(0)
        self._event: Any = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

    def _resize(self, id_words: int) -> None:
        self.words = IDS + id_words
        rows = max(1, self.ranks - 1)  # empty memory has no address
        for before in self._flat:
            if before.is_cuda:  # its uses on any stream precede the work enqueued later on this one
                before.record_stream(torch.cuda.current_stream())
        self._flat = [torch.zeros(rows * self.words, dtype=torch.int64, device=self._device) for _ in range(2)]
        self.received, self.sent = (each.view(rows, self.words) for each in self._flat)
        self.sent_at, self.received_at = self.sent.data_ptr(), self.received.data_ptr()
        self._sizes = [0 if rank == self.rank else self.words for rank in range(self.ranks)]

    def prepare(self, id_words: int, groups: int) -> None:
        """Prepare an exchange, on the current stream; ``id_words``: int64 for ids after each header."""
        if id_words != self.words - IDS:
            self._resize(id_words)
        states = groups * (self.ranks + 3)
        self._turn = 1 - self._turn  # the kernel that reports to the host clears the other half
        self._used[self._turn] = states
        self.state_at = self._states_at + 8 * self._turn * MOST_GROUPS * (self.ranks + 3)

    def write(self, headers: Tensor) -> None:
        """Write headers from the host: ``[others, HEADER_WORDS] int64``."""
        if self._device.type == "cuda":
            headers = headers.pin_memory()
        self.sent[: self.ranks - 1, :HEADER_WORDS].copy_(headers, non_blocking=True)

    def start(self, peers: Peers | None, *, wait: bool) -> Any:
        """Enqueue the exchange on the current stream.

        Returns:
            Without a GPU, the work to wait for; otherwise ``None``.

        Raises:
            RuntimeError: without a GPU, a rank is lost or late.
        """
        return None if peers is None else peers.swap(self._flat[0], self._flat[1], self._sizes, self._sizes, wait=wait)

    def report_arguments(self) -> tuple[int, ...]:
        """Return the arguments of the kernel that reports to the host; see ``kernels.routes.report``."""
        other = 1 - self._turn
        return (
            self.received_at, self.words, self._reported.data_ptr(), IDS, self.ranks - 1, self.state_at,
            self._reported_state.data_ptr(), self._used[self._turn],
            self._states_at + 8 * other * MOST_GROUPS * (self.ranks + 3), self._used[other],
        )  # fmt: skip

    def record_report(self, stream: Any) -> None:
        """Record the report after the work enqueued on ``stream``, which must be the current stream."""
        if self._event is not None:
            self._event.record(stream)

    def wait(self) -> None:
        """Wait for the report.

        Raises:
            RuntimeError: a rank is lost or late.
        """
        if self._event is None:
            return
        begin = time.monotonic()
        while not self._event.query():
            waited = time.monotonic() - begin
            if waited > self._timeout:
                raise RuntimeError(f"nothing arrived for {self._timeout:g} s")
            time.sleep(0 if waited < _SPIN_SECONDS else _SPIN_SECONDS / 10)  # releases the interpreter's lock
