"""What ranks tell each other beside tensors: small facts, through the key-value store of their process group.

The store works before, between and beside collectives, and a rank that waits in it learns who is missing.
"""

from __future__ import annotations

import contextlib
import json
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from manyhop.errors import RankError

Facts = dict[str, Any]
T = TypeVar("T")


@dataclass
class _Line:
    rank: int
    world_size: int
    store: Any
    calls: Counter[str] = field(default_factory=Counter)


_line: _Line | None = None
_attached = 0


def attach(rank: int, world_size: int) -> None:
    """Use the store of the present default group. Groups of one process that follow each other may share a store."""
    global _line, _attached
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

    _attached += 1
    _line = _Line(rank, world_size, PrefixStore(f"manyhop/{_attached}", _get_default_store()))


def on_destroy(end: Callable[..., None], *args: Any) -> None:
    """Have ``end(*args)`` called when the default group is destroyed: torch lets go of its store then."""
    from torch.distributed.distributed_c10d import _get_default_store

    weakref.finalize(_get_default_store(), end, *args).atexit = False


def detach(*, linger: float = 0.0) -> None:
    """Forget the store. The rank that may hold it lingers, some seconds at most, until the others have left it."""
    global _line
    line, _line = _line, None
    if line is None or linger <= 0:
        return
    with contextlib.suppress(RuntimeError):  # it is gone already
        line.store.set(f"left/{line.rank}", "")
        end = time.monotonic() + linger
        while line.rank == 0 and time.monotonic() < end:
            if line.store.check([f"left/{rank}" for rank in range(line.world_size)]):
                break
            time.sleep(0.01)


def store() -> Any:
    """The ranks' store (of torch.distributed), for this thread; ``None`` for a process that stands alone.

    A thread that may wait in the store needs a ``clone()`` of its own.
    """
    return None if _line is None else _line.store


def exchange(title: str, facts: Facts, *, timeout: float) -> list[Facts]:
    """Give ``facts`` to all ranks and get theirs, by rank. All ranks call it, with the same titles in the same order.

    Args:
        title: what is being done, for errors; calls are counted by it.
        facts: what JSON can hold.
        timeout: seconds.

    Raises:
        RankError: ranks did not come in time, or the store is gone.
    """
    if _line is None:
        return [facts]
    number = _line.calls[title]
    _line.calls[title] += 1
    keys = [f"{title}/{number}/{rank}" for rank in range(_line.world_size)]
    try:
        _line.store.set(keys[_line.rank], json.dumps(facts))
        _wait(title, keys, timeout)
        return [json.loads(_line.store.get(key)) for key in keys]
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
    for name in dict.fromkeys(name for facts in every for name in facts):
        values = [facts.get(name, "nothing") for facts in every]
        if any(value != values[0] for value in values):
            raise _difference(title, name, values)
    return every


def attempt(title: str, action: Callable[[], T], *, timeout: float) -> T:
    """Return ``action()``, once it has succeeded on all ranks. All ranks call it, and none waits for one that failed.

    Raises:
        Exception: what ``action`` raised on this rank.
        RankError: it failed on other ranks; names them and the first of their errors.
    """
    result: T | None = None
    error: Exception | None = None
    try:
        result = action()
    except Exception as failure:
        error = failure
    problem = "" if error is None else f"{type(error).__name__}: {error}"
    facts = {"problem": problem, "blames another rank": isinstance(error, RankError)}
    every = exchange(title, facts, timeout=timeout)
    if error is not None:
        raise error
    failed = [rank for rank, facts in enumerate(every) if facts["problem"]]
    if failed:
        own = [rank for rank in failed if not every[rank]["blames another rank"]]
        wrong = tuple(own or failed)
        raise RankError(f"{title}: {ranks_said(wrong)} failed: {every[wrong[0]]['problem']}", ranks=wrong)
    return cast(T, result)


def _difference(title: str, name: str, values: list[Any]) -> RankError:
    by_value: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        by_value.setdefault(json.dumps(value), []).append(rank)
    usual = max(by_value.values(), key=len)  # the first of the largest groups
    odd = tuple(rank for rank in range(len(values)) if rank not in usual)
    got = "; ".join(f"{value} on {ranks_said(ranks)}" for value, ranks in by_value.items())
    return RankError(f"{title}: expected the same {name} on all ranks, got {got}. Pass the same everywhere.", ranks=odd)


def ranks_said(ranks: Sequence[int]) -> str:
    """Ranks in words: "rank 3", "ranks 0, 2 and 5"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _wait(title: str, keys: list[str], timeout: float) -> None:
    assert _line is not None
    end, pause = time.monotonic() + timeout, 0.0005
    while not _line.store.check(keys):
        if time.monotonic() > end:
            missing = tuple(rank for rank, key in enumerate(keys) if not _line.store.check([key]))
            if not missing:
                return
            raise RankError(
                f"{title}: {ranks_said(missing)} did not come within {timeout:g} s. Every rank has to make this call; "
                "look whether one failed or waits elsewhere.",
                ranks=missing,
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
