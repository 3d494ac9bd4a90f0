"""Exchanges of ranks without tensors: small facts, through the key-value store of their process group.

The store works before, between and beside collectives, and a rank that waits in it learns who is missing.
"""

from __future__ import annotations

import contextlib
import json
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from manyhop.errors import RankError

Facts = dict[str, Any]
T = TypeVar("T")

DEFAULT_TIMEOUT = 600.0
"""Seconds that ranks wait for each other, unless the user sets it: while they start, load, build or exchange."""

_ANSWER_S = 5.0  # for facts that all ranks have given, and that one of them is about to put together
_CHECKS_PER_SECOND = 1000.0  # of all ranks together, while they wait
_PAUSES_S = (0.0005, 0.05)  # between checks: the first, and the longest while there are few ranks


class FactExchange:
    """Passes facts between ranks through their store, in a number of its operations that grows with the ranks.

    Each rank sets its facts and counts itself. The last one puts all of them together, equal ones once, and sets the
    result, which each rank gets. No rank waits for a certain other one, only for those that are late. Where one waits
    in vain, that is the outcome for all ranks, those included that come later.

    Args:
        rank: this rank.
        world_size: number of ranks.
        store: of torch.distributed, the same for all ranks.
    """

    def __init__(self, rank: int, world_size: int, store: Any) -> None:
        self.rank, self.world_size, self.store = rank, world_size, store
        self._calls: Counter[str] = Counter()
        self._side: Any = None

    def __call__(self, title: str, facts: Facts, *, timeout: float) -> list[Facts]:
        """See :func:`exchange`."""
        key = f"{title}/{self._calls[title]}"
        self._calls[title] += 1
        keys = [f"{key}/{rank}" for rank in range(self.world_size)]
        self.store.set(keys[self.rank], json.dumps(facts))
        if self.store.add(f"{key}/came", 1) == self.world_size:
            self._settle(key, lambda: _pack(self.store.multi_get(keys)))
        if not self._appears(f"{key}/all", timeout):
            missing = absent(self.store, keys)
            if missing or not self._appears(f"{key}/all", _ANSWER_S):
                self._settle(key, lambda: json.dumps({"missing": missing, "seconds": timeout}).encode())
                if not self._appears(f"{key}/all", _ANSWER_S):
                    raise _missing_ranks(title, (), timeout)
        outcome = json.loads(self.store.get(f"{key}/all"))
        if "missing" in outcome:
            raise _missing_ranks(title, tuple(outcome["missing"]), outcome["seconds"], self.rank)
        return _unpack(outcome)

    def _settle(self, key: str, outcome: Callable[[], bytes]) -> None:
        """Set the outcome for all ranks, unless another rank does: a late one must not go on where others gave up."""
        if self.store.add(f"{key}/settled", 1) == 1:
            self.store.set(f"{key}/all", outcome())

    def side(self) -> Any:
        """See :func:`side_store`."""
        if self._side is None:
            self._side = self.store.clone()
        return self._side

    def leave(self, linger: float) -> None:
        """Leave the store. The rank that may hold it lingers, some seconds at most, until the others have left it."""
        left = self.store.add("left", 1)
        end = time.monotonic() + linger
        while self.rank == 0 and left < self.world_size and time.monotonic() < end:
            time.sleep(0.01)
            left = self.store.add("left", 0)

    def _appears(self, key: str, seconds: float) -> bool:
        return appears(self.store, key, self.world_size, seconds)


def appears(store: Any, key: str, world_size: int, seconds: float) -> bool:
    """Return whether a key is set within so many seconds. Torch's own wait cannot be interrupted by Ctrl-C."""
    pause, longest = _PAUSES_S
    longest = max(longest, world_size / _CHECKS_PER_SECOND)
    end = time.monotonic() + seconds
    while not store.check([key]):
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, longest)
    return True


_facts: FactExchange | None = None
_attached = 0


def attach(rank: int, world_size: int, store: Any) -> None:
    """Use a store that all ranks have. Groups of one process that follow each other may share it."""
    global _facts, _attached
    from torch.distributed.distributed_c10d import PrefixStore

    _attached += 1
    _facts = FactExchange(rank, world_size, PrefixStore(f"manyhop/{_attached}", store))


def on_destroy(end: Callable[..., None], *args: Any) -> None:
    """Call ``end(*args)`` when the default group is destroyed and torch releases its store."""
    from torch.distributed.distributed_c10d import _get_default_store

    weakref.finalize(_get_default_store(), end, *args).atexit = False


def detach(*, linger: float = 0.0) -> None:
    """Forget the store. The rank that may hold it lingers, some seconds at most, until the others have left it."""
    global _facts
    facts, _facts = _facts, None
    if facts is not None and linger > 0:
        with contextlib.suppress(RuntimeError):  # it is gone already
            facts.leave(linger)


def store() -> Any:
    """Return the ranks' store (of torch.distributed), for this thread; ``None`` for a process that stands alone.

    A thread that may wait in the store needs a ``clone()`` of its own.
    """
    return None if _facts is None else _facts.store


def side_store() -> Any:
    """Return another connection to the ranks' store, one for all threads that do not wait in it; ``None`` as of
    ``store``.

    To be made while the store is there: to connect to one whose process has ended takes as long as its timeout.
    """
    return None if _facts is None else _facts.side()


def exchange(title: str, facts: Facts, *, timeout: float) -> list[Facts]:
    """Give ``facts`` to all ranks and get theirs, by rank. All ranks call it, with the same titles in the same order.

    Args:
        title: what is being done, for errors; calls are counted by it.
        facts: what JSON can hold.
        timeout: seconds.

    Returns:
        ``[world_size]``. Ranks with equal facts have the same dictionary, which is not to be changed.

    Raises:
        RankError: ranks did not come in time, or the store is gone.
    """
    if _facts is None:
        return [facts]
    try:
        return _facts(title, facts, timeout=timeout)
    except RuntimeError as error:  # DistError is one: the connection broke
        if isinstance(error, RankError):
            raise
        raise RankError(
            f"{title}: the store of the process group cannot be reached: {error}. The process that holds it, rank 0 or "
            "torchrun's agent, has ended: look for its error.",
        ) from error


def agree(title: str, facts: Facts, *, timeout: float) -> list[Facts]:
    """Exchange ``facts`` and check that they are the same on all ranks.

    Raises:
        RankError: naming the first difference, in the order of the facts, or the ranks that did not come in time.
    """
    every = exchange(title, facts, timeout=timeout)
    _require_same(title, every)
    return every


def attempt(title: str, action: Callable[[], T], *, timeout: float, what: str = "") -> T:
    """Return ``action()``, once it has succeeded on all ranks. All ranks call it, and none waits for one that failed.

    Args:
        title: as for :func:`exchange`.
        action: what to do.
        timeout: seconds to wait for other ranks after it.
        what: a longer description of what is done; the same on all ranks.

    Raises:
        Exception: what ``action`` raised on this rank.
        RankError: it failed on other ranks; names them and the first of their errors. Or ranks did not come in time,
            or do something else.
    """
    result: T | None = None
    error: Exception | None = None
    try:
        result = action()
    except Exception as failure:
        error = failure
    problem = "" if error is None else f"{type(error).__name__}: {error}"
    facts = {"problem": problem, "blames another rank": isinstance(error, RankError), "what": what}
    every = exchange(title, facts, timeout=timeout)
    if error is not None:
        raise error
    failed = [rank for rank, facts in enumerate(every) if facts["problem"]]
    if failed:
        own = [rank for rank in failed if not every[rank]["blames another rank"]]
        wrong = tuple(own or failed)
        raise RankError(f"{what or title}: {rank_names(wrong)} failed: {every[wrong[0]]['problem']}", ranks=wrong)
    _require_same(title, [{"call": facts["what"]} for facts in every])
    return cast(T, result)


def absent(store: Any, keys: Sequence[str]) -> list[int]:
    """Return which keys are not in a store: their positions, ascending. Few checks, where few are."""
    found: list[int] = []
    pending = [range(len(keys))]
    while pending:
        part = pending.pop()
        if not part or store.check([keys[k] for k in part]):
            continue
        if len(part) == 1:
            found.append(part.start)
        else:
            half = len(part) // 2
            pending += [part[half:], part[:half]]
    return found


def _require_same(title: str, every: Sequence[Facts]) -> None:
    for name in dict.fromkeys(name for facts in every for name in facts):
        values = [facts.get(name, "nothing") for facts in every]
        if any(value != values[0] for value in values):
            raise _difference(title, name, values)


def _difference(title: str, name: str, values: list[Any]) -> RankError:
    by_value: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        by_value.setdefault(json.dumps(value), []).append(rank)
    usual = max(by_value.values(), key=len)  # the first of the largest groups
    odd = tuple(rank for rank in range(len(values)) if rank not in usual)
    got = "; ".join(f"{value} on {rank_names(ranks)}" for value, ranks in by_value.items())
    return RankError(f"{title}: expected the same {name} on all ranks, got {got}. Pass the same everywhere.", ranks=odd)


def rank_names(ranks: Sequence[int]) -> str:
    """Ranks in words: "rank 3", "ranks 0, 2 and 5"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _missing_ranks(title: str, ranks: tuple[int, ...], timeout: float, rank: int | None = None) -> RankError:
    if not ranks:
        return RankError(f"{title}: all ranks came, but the last one ended before it answered. Look for its error.")
    late = " This rank came later, when others had given up." if rank in ranks else ""
    return RankError(
        f"{title}: {rank_names(ranks)} did not come within {timeout:g} s.{late} Every rank has to make this call; look "
        "whether one failed or waits elsewhere.",
        ranks=ranks,
    )


def _pack(texts: Sequence[bytes]) -> bytes:
    """Return the facts of all ranks as one text, equal ones once: the ranks of a large run mostly have the same."""
    numbers: dict[bytes, int] = {}
    of = [numbers.setdefault(bytes(text), len(numbers)) for text in texts]
    return b'{"facts":[' + b",".join(numbers) + b'],"of":' + json.dumps(of).encode() + b"}"


def _unpack(found: Facts) -> list[Facts]:
    return [found["facts"][number] for number in found["of"]]
