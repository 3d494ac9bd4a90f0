"""How much room exchanges take in advance: learned from those before, and alike on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

AHEAD_BYTES = 256 << 20
"""Of rows, at most, that a rank sends all others together before it knows how many they want."""

_WINDOW = 64  # exchanges after which what was needed before is forgotten
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
    room: int
    """int64 for all ids."""
    ahead: int
    """Bytes of all rows."""

    @staticmethod
    def of(needs: Sequence[int], widths: Sequence[Sequence[int]], id_bytes: int, most: int) -> Shares:
        """Room for ``[groups]`` rows of tables of ``[groups][tables]`` bytes a row, at most ``most`` bytes ahead."""
        id_begins, room = [], 0
        for need in needs:
            id_begins.append(room)
            room += -(-need * id_bytes // 8)
        wanted = sum(need * sum(of) for need, of in zip(needs, widths, strict=True))
        row_caps = [need if wanted <= most else need * most // wanted for need in needs]
        row_begins, ahead = [], 0
        for cap, of in zip(row_caps, widths, strict=True):
            begins = []
            for width in of:
                begins.append(ahead)
                ahead += -(-cap * width // _ALIGNMENT) * _ALIGNMENT
            row_begins.append(tuple(begins))
        return Shares(tuple(id_begins), tuple(needs), tuple(row_begins), tuple(row_caps), room, ahead)


@dataclass
class _Kind:
    """What is known of exchanges that ask for the same tensors."""

    shares: Shares
    most: list[int] = field(default_factory=list)
    seen: int = 0


class Terms:
    """What the ranks of an exchange can take for granted in the next one. All have said the same to all, so all agree.

    Args:
        others: how many other ranks each has.

    Attributes:
        room: int64 that follow each header, for ids.
        ahead: bytes of rows that each rank sends each other one before it knows how many are wanted.
    """

    def __init__(self, others: int) -> None:
        self._most = AHEAD_BYTES // max(1, others)
        self.room = self.ahead = 0
        self._kinds: dict[int, _Kind] = {}

    def shares(self, signature: int, widths: Sequence[Sequence[int]]) -> Shares:
        """How an exchange divides that room.

        Args:
            signature: of what is asked for; the same on all ranks.
            widths: ``[groups][tables]``: bytes of a row of each tensor that is read by the same index.
        """
        kind = self._kinds.get(signature)
        return _nothing(widths) if kind is None else kind.shares

    def learn(self, signature: int, needs: Sequence[int], widths: Sequence[Sequence[int]], id_bytes: int) -> None:
        """What was wanted in an exchange, of all that all ranks have been told.

        Args:
            signature: of what was asked for.
            needs: ``[groups]``: the most rows that any rank wanted of another one.
            widths: as above.
            id_bytes: of a row number.
        """
        kind = self._kinds.pop(signature, None) or _Kind(_nothing(widths), [0] * len(needs))
        self._kinds[signature] = kind  # the last one in it
        kind.most = [max(pair) for pair in zip(kind.most, needs, strict=True)]
        kind.seen += 1
        caps: Sequence[int] = kind.shares.id_caps
        over = any(need > cap for need, cap in zip(needs, caps, strict=True))
        if over:
            caps = [max(cap, _roomy(need)) for cap, need in zip(caps, kind.most, strict=True)]
        elif kind.seen >= _WINDOW:
            caps, kind.most, kind.seen = [_roomy(need) for need in kind.most], [0] * len(needs), 0
        else:
            return
        kind.shares = Shares.of(caps, widths, id_bytes, self._most)
        if len(self._kinds) > _MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]
        self.room = max(each.shares.room for each in self._kinds.values())
        self.ahead = max(each.shares.ahead for each in self._kinds.values())


def _roomy(need: int) -> int:
    """So that the next exchange, which needs a little more, will find room."""
    return need + need // 32 + 64 if need else 0


def _nothing(widths: Sequence[Sequence[int]]) -> Shares:
    return Shares.of([0] * len(widths), widths, 8, 0)
