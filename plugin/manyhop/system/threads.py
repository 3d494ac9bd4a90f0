"""Cores, threads for kernels that release the GIL, and hooks of forks."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

_executors: dict[tuple[int, int], ThreadPoolExecutor] = {}


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def executor(threads: int) -> ThreadPoolExecutor:
    """Return the process's pool of this many threads."""
    key = (os.getpid(), threads)
    if key not in _executors:
        _executors.setdefault(key, ThreadPoolExecutor(threads, thread_name_prefix="manyhop-gather"))
    return _executors[key]


class Lock(Protocol):
    """A reentrant lock."""

    def acquire(self) -> object: ...
    def release(self) -> object: ...


def in_forked_children(call: Callable[[], object]) -> None:
    """Run ``call()`` first in every process that is forked from this one; do nothing on systems without fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


def hold_while_forking(lock: Lock) -> None:
    """Delay forks until no other thread holds a lock. In the child, that thread would never release it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
