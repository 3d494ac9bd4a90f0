"""Cores, and threads for kernels that release the GIL."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

_executors: dict[tuple[int, int], ThreadPoolExecutor] = {}


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def executor(threads: int) -> ThreadPoolExecutor:
    """Return threads that all callers with the same number of them share; a forked child has its own."""
    key = (os.getpid(), threads)
    if key not in _executors:
        _executors.setdefault(key, ThreadPoolExecutor(threads, thread_name_prefix="manyhop-gather"))
    return _executors[key]
