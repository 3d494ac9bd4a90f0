"""How much room exchanges take in advance: learned from those before, and alike on all ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

AHEAD_BYTES = 320 << 20
"""Of rows, at most, that a rank sends all others together before it knows how many they want."""

_WINDOW = 8  # exchanges after which what was needed before is forgotten
_MOST_KINDS = 16
_ALIGNMENT = 16


@dataclass(frozen=True)
class Shares:
    """Where the ids of each index, and the rows, lie on their way to a rank."""

    id_begins: tuple[int, ...]
    """``[groups]``: int64 from the end of the header to the ids."""
    id_caps: tuple[int, ...]
    """``[groups]``: ids that there is room for."""
    row_begins: tuple[tuple[int, ...], ...]
    """``[groups][tables]``: bytes from the beginning of what a rank sends ahead."""
    row_caps: tuple[int, ...]
    """``[groups]``: rows of each table that are sent ahead."""

    @staticmethod
    def of(needs: Sequence[int], widths: Sequence[Sequence[int]], id_bytes: int, room: int, ahead: int) -> Shares:
        """Shares of some room, as far as it goes.

        Args:
            needs: ``[groups]``: rows for which there should be room.
            widths: ``[groups][tables]``: bytes of a row of each tensor that is read by the same index.
            id_bytes: of a row number.
            room: int64 for ids.
            ahead: bytes for rows.
        """
        id_widths = [[id_bytes]] * len(needs)
        id_caps = _fitted(needs, id_widths, 8, 8 * room)
        row_caps = _fitted(id_caps, widths, _ALIGNMENT, ahead)
        id_begins = tuple(begin // 8 for (begin,) in _laid_out(id_caps, id_widths, 8)[0])
        return Shares(id_begins, tuple(id_caps), _laid_out(row_caps, widths, _ALIGNMENT)[0], tuple(row_caps))


@dataclass
class _Kind:
    """What is known of exchanges that ask for the same tensors."""

    wanted: deque[tuple[int, ...]] = field(default_factory=lambda: deque(maxlen=_WINDOW))  # with some to spare
    most: tuple[int, ...] = ()  # of these, for each index
    takes: tuple[int, int] = (0, 0)  # the last: words for ids, bytes of rows
    shares: tuple[object, Shares] | None = None  # and what they were made for


class Terms:
    """What the ranks of an exchange can take for granted in the next one. All have said the same to all, so all agree.

    Args:
        others: how many other ranks each has.

    Attributes:
        room: int64 that follow each header, for ids.
        ahead: bytes of rows that each rank sends each other one before it knows how many are wanted.
    """

    def __init__(self, others: int) -> None:
        self._most = AHEAD_BYTES // max(1, others) // _ALIGNMENT * _ALIGNMENT
        self.room = self.ahead = 0
        self._kinds: dict[int, _Kind] = {}
        self._taken: deque[tuple[int, int]] = deque(maxlen=_WINDOW)

    def shares(self, signature: int, widths: Sequence[Sequence[int]], id_bytes: int) -> Shares:
        """How an exchange divides that room.

        Args:
            signature: of what is asked for; the same on all ranks.
            widths: ``[groups][tables]``: bytes of a row of each tensor that is read by the same index.
            id_bytes: of a row number.
        """
        kind = self._kinds.get(signature)
        if kind is None:
            return Shares.of([0] * len(widths), widths, id_bytes, 0, 0)
        made_for = (kind.most, self.room, self.ahead)
        if kind.shares is None or kind.shares[0] != made_for:
            kind.shares = made_for, Shares.of(kind.most, widths, id_bytes, self.room, self.ahead)
        return kind.shares[1]

    def learn(self, signature: int, needs: Sequence[int], widths: Sequence[Sequence[int]], id_bytes: int) -> None:
        """What was wanted in an exchange, of all that all ranks have been told.

        Args:
            signature: of what was asked for.
            needs: ``[groups]``: the most rows that any rank wanted of another one.
            widths, id_bytes: as above.
        """
        kind = self._kinds.get(signature)
        if kind is None:
            kind = self._kinds[signature] = _Kind()
            if len(self._kinds) > _MOST_KINDS:
                del self._kinds[next(iter(self._kinds))]
        wanted = tuple([_roomy(need) for need in needs])
        if not kind.wanted or wanted != kind.wanted[-1]:
            words = _laid_out(wanted, [[id_bytes]] * len(needs), 8)[1] // 8
            kind.takes = words, min(_laid_out(wanted, widths, _ALIGNMENT)[1], self._most)
        if kind.wanted.count(wanted) < _WINDOW:  # else nothing has changed
            kind.wanted.append(wanted)
            kind.most = tuple(map(max, zip(*kind.wanted, strict=True)))
        if self._taken.count(kind.takes) < _WINDOW:
            self._taken.append(kind.takes)
            self.room, self.ahead = map(max, zip(*self._taken, strict=True))


def _roomy(need: int) -> int:
    """So that an exchange that needs a little more will find room, and one that needs a little less changes nothing."""
    if need == 0:
        return 0
    need += need // 32 + 64
    step = max(1, (1 << need.bit_length()) >> 6)
    return -(-need // step) * step


def _laid_out(
    counts: Sequence[int], widths: Sequence[Sequence[int]], alignment: int
) -> tuple[tuple[tuple[int, ...], ...], int]:
    """Where ``[groups]`` rows of ``[groups][tables]`` bytes begin, one table behind the other, and where they end."""
    begins, end = [], 0
    for count, of in zip(counts, widths, strict=True):
        here = []
        for width in of:
            here.append(end)
            end += -(-count * width // alignment) * alignment
        begins.append(tuple(here))
    return tuple(begins), end


def _fitted(counts: Sequence[int], widths: Sequence[Sequence[int]], alignment: int, room: int) -> list[int]:
    """As many rows of each group or, where there is not enough room, less of each in proportion."""
    if _laid_out(counts, widths, alignment)[1] <= room:
        return list(counts)
    wanted = sum(count * sum(of) for count, of in zip(counts, widths, strict=True))
    left = max(0, room - alignment * sum(map(len, widths)))
    return [count * left // wanted for count in counts]
