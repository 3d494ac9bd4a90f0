"""Whether it pays to look for ids that come again in an index: what each rank has learned from exchanges before."""

from __future__ import annotations

from collections.abc import Sequence

from manyhop.features.exchange.gpu.routes import Group

_BYTES_PER_ID = 12  # that could be sent while an id is looked for: 40 ps on an H200, at 300 GB/s
_BYTES = 12 << 20  # that could be sent while the host sees to two kernels more: 40 us
_AGAIN = 32  # exchanges until it is tried again
_MOST_KNOWN = 256


class Repeats:
    """What is known of the indices of an exchange."""

    def __init__(self) -> None:
        self._since: dict[tuple[int, int, int], int] = {}  # exchanges since it was found not to pay

    def decide(self, signature: int, groups: Sequence[Group]) -> None:
        """Say for each group whether its ids are looked for.

        Args:
            signature: of what is asked for.
            groups: of that exchange.
        """
        for g, group in enumerate(groups):
            kind = signature, g, group.count.bit_length()  # many ids repeat more often than few
            since = self._since.get(kind, -1) + 1
            if since:
                self._since[kind] = since
            group.deduplicate = since % _AGAIN == 0 and _can_repeat(group)

    def learn(self, signature: int, groups: Sequence[Group]) -> None:
        """Note what looking for them has saved, once the host knows."""
        for g, group in enumerate(groups):
            if group.deduplicate:
                kind = signature, g, group.count.bit_length()
                if group.ends[0] * sum(group.widths) > _BYTES + _BYTES_PER_ID * group.count:
                    self._since.pop(kind, None)
                elif len(self._since) < _MOST_KNOWN:
                    self._since[kind] = 0


def _can_repeat(group: Group) -> bool:
    """Whether repeats would be sent, and an id and its position fit into a number."""
    source = group.request.source
    bits: int = group.count.bit_length() + source.num_rows.bit_length()
    return bits <= 63 and not source.world.is_alone
