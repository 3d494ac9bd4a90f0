"""One way to read rows, in a process of its own: ``python -m manyhop_bench.disk.worker``, with a job on stdin."""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from typing import Any

if __name__ == "__main__":
    job: dict[str, Any] = json.load(sys.stdin)
    if job["processes"] is not None:  # before anything else takes memory
        with open(job["processes"], "w") as file:
            file.write(str(os.getpid()))

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

NUMPY, RANDOM, MAPPED, CACHED = "numpy.memmap", "numpy.memmap, MADV_RANDOM", "manyhop, mapped", "manyhop, cache"
_AT_ONCE = 2048  # rows of a request: a batch would take minutes where they are read one after the other


def measure(job: dict[str, Any]) -> dict[str, float]:
    """Read rows for some seconds that do not count and some that do.

    Args:
        job: ``name`` of the reader, ``file``, ``ids`` (a file), ``cache`` (bytes), ``warm_up`` and ``seconds``.

    Returns:
        ``rows_per_s``; of the cache ``hit_rate`` and ``fill_s``, the time until the first rows were kept.
    """
    ids: Ids = np.load(job["ids"])
    _drop_pages(job["file"])
    begin = time.perf_counter()
    read, finish = _reader(job, ids)
    fill = time.perf_counter() - begin
    ids = ids[job["counted"] :]  # others than those by which the cache was filled
    position = _read_for(job["warm_up"], read, ids, 0)[0]
    finish()
    position, rows, seconds = _read_for(job["seconds"], read, ids, position)
    return {"rows_per_s": rows / seconds, "hit_rate": finish(), "fill_s": fill}


def _read_for(seconds: float, read: Callable[[Ids], Any], ids: Ids, position: int) -> tuple[int, int, float]:
    """Read on from a position; returns the next one, how many rows, and how long that took."""
    rows, begin = 0, time.perf_counter()
    while (took := time.perf_counter() - begin) < seconds:
        part = ids[position : position + _AT_ONCE]
        found = read(part)
        if not np.array_equal(found[:, 0], part.astype(np.int32)) or not np.array_equal(found[:, -1], found[:, 0]):
            raise AssertionError(f"{job['name']} read wrong rows")
        rows += len(part)
        position = position + _AT_ONCE if position + _AT_ONCE < len(ids) else 0
    return position, rows, took


def _reader(job: dict[str, Any], ids: Ids) -> tuple[Callable[[Ids], Any], Callable[[], float]]:
    """Return what reads rows, and what gives the hit rate since it was called before."""
    if job["name"] in (NUMPY, RANDOM):
        table = np.load(job["file"], mmap_mode="r")
        if job["name"] == RANDOM:
            table.base.madvise(mmap.MADV_RANDOM)
        return lambda index: table[index], lambda: 0.0
    import torch

    from manyhop import files
    from manyhop.features import BufferPool, cache_files, file_cache, gather, only_counting

    mapped, pool = files.open(job["file"]).mapped(), BufferPool()

    def read(index: Ids) -> Any:
        return gather([(mapped, torch.from_numpy(index))], pool=pool)[0].numpy()

    if job["name"] == MAPPED:
        return read, lambda: 0.0
    cache_files([mapped], job["cache"])
    cache = file_cache(mapped)
    assert cache is not None
    with only_counting():  # as a loader does with its first batches
        read(ids[: job["counted"]])
    cache.renew(mapped)
    while cache.is_renewing:
        time.sleep(0.01)

    def hit_rate() -> float:
        asked, kept = cache.take_counts()
        return kept / max(asked, 1)

    return read, hit_rate


def _drop_pages(path: str) -> None:
    """Have the system forget what it keeps of a file."""
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


if __name__ == "__main__":
    print(json.dumps(measure(job)))
