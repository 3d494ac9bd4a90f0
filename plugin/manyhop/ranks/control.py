"""Exchange small facts between ranks, through the key-value store of their process group.

The store works before, between and during collectives, and can tell which ranks are missing.
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
"""Seconds that ranks wait for each other, unless the user sets a timeout."""

_ANSWER_S = 5.0  # until the last rank has merged the facts of all
_CHECKS_PER_SECOND = 1000.0  # of all ranks together, while they wait
_PAUSES_S = (0.0005, 0.05)  # between checks: the first pause, and the longest of a small run


class FactExchange:
    """Exchanges facts between ranks through their store. The number of operations grows linearly with the ranks.

    Each rank sets its facts and increments a counter. The last one merges all facts, storing equal ones once, and sets
    the result. If a rank times out, all ranks fail, including late ones.
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
        """Set the outcome for all ranks, unless a different rank has: all must agree whether to continue."""
        if self.store.add(f"{key}/settled", 1) == 1:
            self.store.set(f"{key}/all", outcome())

    def side(self) -> Any:
        """Return the store of :func:`side_store`."""
        if self._side is None:
            self._side = self.store.clone()
        return self._side

    def leave(self, linger: float) -> None:
        """Leave the store. Rank 0, which may hold it, first waits up to ``linger`` seconds for the others to leave."""
        left = self.store.add("left", 1)
        end = time.monotonic() + linger
        while self.rank == 0 and left < self.world_size and time.monotonic() < end:
            time.sleep(0.01)
            left = self.store.add("left", 0)

    def _appears(self, key: str, seconds: float) -> bool:
        return appears(self.store, key, self.world_size, seconds)


def appears(store: Any, key: str, world_size: int, seconds: float) -> bool:
    """Return whether a key is set within some seconds. Ctrl-C cannot interrupt torch's ``wait``."""
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
    """Use a store that all ranks share. Consecutive groups of a process may use the same store."""
    global _facts, _attached
    from torch.distributed.distributed_c10d import PrefixStore

    _attached += 1
    _facts = FactExchange(rank, world_size, PrefixStore(f"manyhop/{_attached}", store))


def on_destroy(end: Callable[..., None], *args: Any) -> None:
    """Call ``end(*args)`` when the default group is destroyed and torch releases its store."""
    from torch.distributed.distributed_c10d import _get_default_store

    weakref.finalize(_get_default_store(), end, *args).atexit = False


def detach(*, linger: float = 0.0) -> None:
    """Forget the store. Rank 0, which may hold it, first waits up to ``linger`` seconds for the others to leave."""
    global _facts
    facts, _facts = _facts, None
    if facts is not None and linger > 0:
        with contextlib.suppress(RuntimeError):  # it has ended
            facts.leave(linger)


def store() -> Any:
    """Return the ranks' store (of torch.distributed); ``None`` for a single process.

    A thread that may wait in the store needs its own ``clone()``.
    """
    return None if _facts is None else _facts.store


def side_store() -> Any:
    """Return a connection to the ranks' store for threads that do not wait in it; ``None`` for a single process.

    Create it before the store's process ends, since connecting to an ended process blocks until the timeout.
    """
    return None if _facts is None else _facts.side()


def exchange(title: str, facts: Facts, *, timeout: float) -> list[Facts]:
    """Exchange facts with all ranks. All ranks call it, with equal titles in the same order.

    Args:
        title: names the exchange in errors; calls are counted by title.
        facts: plain values for JSON.
        timeout: seconds.

    Returns:
        ``[world_size]`` facts by rank. Ranks with equal facts share a dictionary, which must not be changed.

    Raises:
        RankError: ranks are late, or the store has ended.
    """
    if _facts is None:
        return [facts]
    try:
        return _facts(title, facts, timeout=timeout)
    except RuntimeError as error:  # DistError is one: the connection broke
        if isinstance(error, RankError):
            raise
        raise RankError(
            f"{title}: no connection to the store of the process group: {error}. The process that holds it, rank 0 or "
            "torchrun's agent, has ended: look for its error.",
        ) from error


def agree(title: str, facts: Facts, *, timeout: float) -> list[Facts]:
    """Exchange ``facts`` and check that they are the same on all ranks.

    Raises:
        RankError: naming the first difference, in the order of the facts, or the late ranks.
    """
    every = exchange(title, facts, timeout=timeout)
    _require_same(title, every)
    return every


def attempt(title: str, action: Callable[[], T], *, timeout: float, what: str = "") -> T:
    """Return ``action()``, once it has succeeded on all ranks. All ranks call it, and none waits for one that failed.

    Args:
        title: as for :func:`exchange`.
        action: called on each rank.
        timeout: seconds to wait for other ranks after it.
        what: a longer description, equal on all ranks.

    Raises:
        Exception: ``action`` failed on this rank.
        RankError: ``action`` failed on other ranks; names them and their first error. Or ranks are late, or their
            ``what`` differs.
    """
    result: T | None = None
    error: Exception | None = None
    try:
        result = action()
    except Exception as raised:
        error = raised
    problem = "" if error is None else f"{type(error).__name__}: {error}"
    facts = {"problem": problem, "blames another rank": isinstance(error, RankError), "what": what}
    every = exchange(title, facts, timeout=timeout)
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame
    failed = [rank for rank, facts in enumerate(every) if facts["problem"]]
    if failed:
        own = [rank for rank in failed if not every[rank]["blames another rank"]]
        wrong = tuple(own or failed)
        raise RankError(f"{what or title}: {rank_names(wrong)} failed: {every[wrong[0]]['problem']}", ranks=wrong)
    _require_same(title, [{"call": facts["what"]} for facts in every])
    return cast(T, result)


def absent(store: Any, keys: Sequence[str]) -> list[int]:
    """Return the ascending positions of the keys that a store lacks. Few missing keys need few checks."""
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
    usual = max(by_value.values(), key=len)
    odd = tuple(rank for rank in range(len(values)) if rank not in usual)
    got = "; ".join(f"{value} on {rank_names(ranks)}" for value, ranks in by_value.items())
    return RankError(f"{title}: expected the same {name} on all ranks, got {got}. Pass equal values.", ranks=odd)


def rank_names(ranks: Sequence[int]) -> str:
    """Return ranks in words: "rank 3", "ranks 0, 2 and 5"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _missing_ranks(title: str, ranks: tuple[int, ...], timeout: float, rank: int | None = None) -> RankError:
    if not ranks:
        return RankError(f"{title}: all ranks arrived, but the last one ended before it answered. Look for its error.")
    late = " This rank arrived later, after the others had given up." if rank in ranks else ""
    return RankError(
        f"{title}: {rank_names(ranks)} did not arrive within {timeout:g} s.{late} All ranks must call this: check "
        "whether one failed or waits elsewhere.",
        ranks=ranks,
    )


def _pack(texts: Sequence[bytes]) -> bytes:
    """Return the facts of all ranks as one text, storing equal ones once."""
    numbers: dict[bytes, int] = {}
    of = [numbers.setdefault(bytes(text), len(numbers)) for text in texts]
    return b'{"facts":[' + b",".join(numbers) + b'],"of":' + json.dumps(of).encode() + b"}"


def _unpack(found: Facts) -> list[Facts]:
    return [found["facts"][number] for number in found["of"]]
