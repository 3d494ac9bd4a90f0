"""Messages that ranks exchange before rows: headers with ids, reports, and quotas of speculative sends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from manyhop.features.exchange.peers import Peers
from manyhop.features.exchange.requested import ALIGNMENT
from manyhop.features.exchange.row_exchange import HEADER_WORDS

MOST_GROUPS = 64
"""Largest number of indices of an exchange: headers have a fixed size."""

LENGTHS = HEADER_WORDS
"""Offset of the numbers of rows requested from the receiver, one per group, in a header."""

NEEDS = LENGTHS + MOST_GROUPS
"""Offset of the largest numbers of rows requested from any rank, one per group."""

IDS = NEEDS + MOST_GROUPS
"""Offset of the ids."""

_KEPT_BYTES = 64 << 20  # of one use
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
        self._reported = torch.empty(max(1, ranks - 1), IDS, dtype=torch.int64, device="cpu", pin_memory=pinned)
        self._reported_state = torch.empty(MOST_GROUPS, ranks + 3, dtype=torch.int64, device="cpu", pin_memory=pinned)
        self.reported, self.reported_state = self._reported.numpy()[: ranks - 1], self._reported_state.numpy()
        self._states = torch.zeros(2, MOST_GROUPS, ranks + 3, dtype=torch.int64, device=device)
        self._states_at = self._states.data_ptr()
        self._used = [0, 0]  # words of each that may be nonzero
        self._turn = 0
        self._flat: list[Tensor] = []
        self._kept: dict[str, Tensor] = {}
        self._resize(0)
        self._event: Any = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

    def _resize(self, id_words: int) -> None:
        self.words = IDS + id_words
        rows = max(1, self.ranks - 1)  # empty memory has no address
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

    def memory(self, use: str, count: int, dtype: torch.dtype) -> Tensor:
        """Return ``[count]`` entries or more with undefined content, on the current stream, for this exchange.

        The next one gets the same memory for the same use, unless it is large: allocations take the host's time.
        """
        kept = self._kept.get(use)
        if kept is None or kept.numel() < count:
            if count * dtype.itemsize > _KEPT_BYTES:
                return torch.empty(count, dtype=dtype, device=self._device)
            kept = self._kept[use] = torch.empty(count + count // 4, dtype=dtype, device=self._device)
        return kept

    def record_stream(self, stream: Any) -> None:
        """Keep the memory, also after its last reference, for the work that has been enqueued on ``stream`` by then."""
        for tensor in (self._states, *self._flat, *self._kept.values()):
            tensor.record_stream(stream)

    def write(self, headers: Tensor) -> None:
        """Write headers from the host: ``[others, HEADER_WORDS] int64``."""
        if self._device.type == "cuda":
            headers = headers.pin_memory()
        self.sent[: self.ranks - 1, :HEADER_WORDS].copy_(headers, non_blocking=True)

    def start(self, peers: Peers | None, *, wait: bool) -> Any:
        """Enqueue the exchange on the current stream. Return the work to wait for, ``None`` on a GPU."""
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
        """Wait for the report; RuntimeError: a rank is lost or late."""
        if self._event is None:
            return
        begin = time.monotonic()
        while not self._event.query():
            waited = time.monotonic() - begin
            if waited > self._timeout:
                raise RuntimeError(f"nothing arrived for {self._timeout:g} s")
            time.sleep(0 if waited < _SPIN_SECONDS else _SPIN_SECONDS / 10)  # releases the interpreter's lock


AHEAD_BYTES = 320 << 20
"""Largest number of bytes of rows that a rank sends to all others before counts are exchanged."""

_WINDOW = 8  # exchanges that quotas are learned from
_MOST_KINDS = 16


@dataclass(frozen=True)
class Shares:
    """Layout of the ids of each index, and of the rows, in a message to a rank."""

    id_begins: tuple[int, ...]
    """``[groups]``: offset of the ids after the header, in int64."""
    id_caps: tuple[int, ...]
    """``[groups]``: ids that fit."""
    row_begins: tuple[tuple[int, ...], ...]
    """``[groups][tables]``: offset of the rows in the speculative message, in bytes."""
    row_caps: tuple[int, ...]
    """``[groups]``: rows of each table that are sent speculatively."""

    @staticmethod
    def of(needs: Sequence[int], widths: Sequence[Sequence[int]], id_bytes: int, id_words: int, ahead: int) -> Shares:
        """Divide a quota (``id_words`` int64 of ids, ``ahead`` bytes of rows) over groups, or less in proportion.

        Args:
            needs: ``[groups]``: expected rows.
            widths: ``[groups][tables]``: bytes of a row of each tensor that is read by the same index.
            id_bytes: bytes of a row number.
        """
        id_widths = [[id_bytes]] * len(needs)
        id_caps = _fit(needs, id_widths, 8, 8 * id_words)
        row_caps = _fit(id_caps, widths, ALIGNMENT, ahead)
        id_begins = tuple(begin // 8 for (begin,) in _offsets(id_caps, id_widths, 8)[0])
        return Shares(id_begins, tuple(id_caps), _offsets(row_caps, widths, ALIGNMENT)[0], tuple(row_caps))


@dataclass
class _Kind:
    """The history of exchanges of the same tensors."""

    wanted: deque[tuple[int, ...]] = field(default_factory=lambda: deque(maxlen=_WINDOW))  # with slack
    most: tuple[int, ...] = ()  # their maximum, for each index
    latest: tuple[int, int] = (0, 0)  # of the latest exchange: words of ids, bytes of rows
    shares: tuple[object, Shares] | None = None  # with the quota that they divide


class SpeculativeQuota:
    """The data that ranks send each other before counts are known. All ranks learn from the same counts, and agree.

    ``id_words``: int64 for ids after each header. ``ahead``: bytes of rows that each rank sends to each other one.
    """

    def __init__(self, others: int) -> None:
        self._max_bytes = AHEAD_BYTES // max(1, others) // ALIGNMENT * ALIGNMENT
        self.id_words = self.ahead = 0
        self._kinds: dict[int, _Kind] = {}
        self._taken: deque[tuple[int, int]] = deque(maxlen=_WINDOW)

    def shares(self, signature: int, widths: Sequence[Sequence[int]], id_bytes: int) -> Shares:
        """Return the layout of the quota in an exchange with requests of this signature; see :meth:`Shares.of`."""
        kind = self._kinds.get(signature)
        if kind is None:
            return Shares.of([0] * len(widths), widths, id_bytes, 0, 0)
        made_for = (kind.most, self.id_words, self.ahead)
        if kind.shares is None or kind.shares[0] != made_for:
            kind.shares = made_for, Shares.of(kind.most, widths, id_bytes, self.id_words, self.ahead)
        return kind.shares[1]

    def learn(self, signature: int, needs: Sequence[int], widths: Sequence[Sequence[int]], id_bytes: int) -> None:
        """Learn from ``needs``, ``[groups]``: the most rows that any rank requested from a different rank."""
        kind = self._kinds.get(signature)
        if kind is None:
            kind = self._kinds[signature] = _Kind()
            if len(self._kinds) > _MOST_KINDS:
                del self._kinds[next(iter(self._kinds))]
        wanted = tuple([_with_slack(need) for need in needs])
        if not kind.wanted or wanted != kind.wanted[-1]:
            words = _offsets(wanted, [[id_bytes]] * len(needs), 8)[1] // 8
            kind.latest = words, min(_offsets(wanted, widths, ALIGNMENT)[1], self._max_bytes)
        if kind.wanted.count(wanted) < _WINDOW:  # else nothing has changed
            kind.wanted.append(wanted)
            kind.most = tuple(map(max, zip(*kind.wanted, strict=True)))
        if self._taken.count(kind.latest) < _WINDOW:
            self._taken.append(kind.latest)
            self.id_words, self.ahead = map(max, zip(*self._taken, strict=True))


def _with_slack(need: int) -> int:
    """Round up with slack, so that small changes of the need do not change the quota."""
    if need == 0:
        return 0
    need += need // 32 + 64
    step = max(1, (1 << need.bit_length()) >> 6)
    return -(-need // step) * step


def _offsets(
    counts: Sequence[int], widths: Sequence[Sequence[int]], alignment: int
) -> tuple[tuple[tuple[int, ...], ...], int]:
    """Return the offsets of ``[groups]`` rows of ``[groups][tables]`` bytes, table by table, and their end."""
    begins, end = [], 0
    for count, of in zip(counts, widths, strict=True):
        here = []
        for width in of:
            here.append(end)
            end += -(-count * width // alignment) * alignment
        begins.append(tuple(here))
    return tuple(begins), end


def _fit(counts: Sequence[int], widths: Sequence[Sequence[int]], alignment: int, id_words: int) -> list[int]:
    """Return the rows of each group, reduced in proportion if they exceed the quota of bytes."""
    if _offsets(counts, widths, alignment)[1] <= id_words:
        return list(counts)
    wanted = sum(count * sum(of) for count, of in zip(counts, widths, strict=True))
    left = max(0, id_words - alignment * sum(map(len, widths)))
    return [count * left // wanted for count in counts]
