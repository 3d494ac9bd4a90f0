"""Quotas of speculative sends: learned from earlier exchanges, equal on all ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from manyhop.features.exchange.requested import ALIGNMENT

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
        """Divide a quota over groups; if it is too small, in proportion.

        Args:
            needs: ``[groups]``: expected rows.
            widths: ``[groups][tables]``: bytes of a row of each tensor that is read by the same index.
            id_bytes: bytes of a row number.
            id_words: quota of ids, in int64.
            ahead: quota of rows, in bytes.
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

    Attributes:
        id_words: int64 for ids after each header.
        ahead: bytes of rows that each rank sends to each of the others speculatively.
    """

    def __init__(self, others: int) -> None:
        self._max_bytes = AHEAD_BYTES // max(1, others) // ALIGNMENT * ALIGNMENT
        self.id_words = self.ahead = 0
        self._kinds: dict[int, _Kind] = {}
        self._taken: deque[tuple[int, int]] = deque(maxlen=_WINDOW)

    def shares(self, signature: int, widths: Sequence[Sequence[int]], id_bytes: int) -> Shares:
        """Return the layout of the quota in an exchange.

        Args:
            signature: signature of the requests, equal on all ranks.
            widths: ``[groups][tables]``: bytes of a row of each tensor that is read by the same index.
            id_bytes: bytes of a row number.
        """
        kind = self._kinds.get(signature)
        if kind is None:
            return Shares.of([0] * len(widths), widths, id_bytes, 0, 0)
        made_for = (kind.most, self.id_words, self.ahead)
        if kind.shares is None or kind.shares[0] != made_for:
            kind.shares = made_for, Shares.of(kind.most, widths, id_bytes, self.id_words, self.ahead)
        return kind.shares[1]

    def learn(self, signature: int, needs: Sequence[int], widths: Sequence[Sequence[int]], id_bytes: int) -> None:
        """Learn from the counts of an exchange, which are equal on all ranks.

        Args:
            signature: signature of the requests.
            needs: ``[groups]``: the most rows that any rank requested from a different rank.
            widths, id_bytes: as in :meth:`shares`.
        """
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
