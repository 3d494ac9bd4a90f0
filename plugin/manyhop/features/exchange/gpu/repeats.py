"""Decide whether removing repeated ids pays; each rank learns from its earlier exchanges."""

from __future__ import annotations

from collections.abc import Sequence

from manyhop.features.exchange.gpu.routes import Group

_BYTES_PER_ID = 12  # sent in the time of a lookup: 40 ps on an H200, at 300 GB/s
_BYTES = 12 << 20  # sent in the host's time for two more kernels: 40 us
_AGAIN = 32  # exchanges until the next attempt
_MOST_KNOWN = 256


class Repeats:
    """The history of repeated ids, by kind of index."""

    def __init__(self) -> None:
        self._since: dict[tuple[int, int, int], int] = {}  # exchanges since an attempt that did not pay

    def decide(self, signature: int, groups: Sequence[Group]) -> None:
        """Set ``deduplicate`` of each group.

        Args:
            signature: signature of the requests.
            groups: groups of the exchange.
        """
        for g, group in enumerate(groups):
            kind = signature, g, group.count.bit_length()  # many ids repeat more often than few
            since = self._since.get(kind, -1) + 1
            if since:
                self._since[kind] = since
            group.deduplicate = since % _AGAIN == 0 and _can_repeat(group)

    def learn(self, signature: int, groups: Sequence[Group]) -> None:
        """Learn from the numbers of repeated ids, once the host knows them."""
        for g, group in enumerate(groups):
            if group.deduplicate:
                kind = signature, g, group.count.bit_length()
                if group.ends[0] * sum(group.widths) > _BYTES + _BYTES_PER_ID * group.count:
                    self._since.pop(kind, None)
                elif len(self._since) < _MOST_KNOWN:
                    self._since[kind] = 0


def _can_repeat(group: Group) -> bool:
    """Return whether repeats would be sent, and an id with its position fits into 63 bits."""
    source = group.request.source
    bits: int = group.count.bit_length() + source.num_rows.bit_length()
    return bits <= 63 and not source.world.is_alone
