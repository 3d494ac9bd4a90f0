"""One process that reads rows for the benchmark of files: a job in JSON on stdin, what it found in JSON on stdout."""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Read = Callable[[Ids], Any]

NUMPY, RANDOM, MAPPED, CACHED = "numpy.memmap", "numpy.memmap, MADV_RANDOM", "manyhop, mapped", "manyhop, cache"
HOT = "manyhop, cache, hot rows on the GPU"
PRIVATE, SHARED = "manyhop, a cache for each rank", "manyhop, one cache for all ranks"
_COUNTED_AT_ONCE = 1 << 16
_AT_ONCE = 2048  # rows of a request: a batch would take minutes where they are read one after the other


def measure(job: dict[str, Any]) -> dict[str, float]:
    """Read rows for some seconds that do not count and some that do.

    Args:
        job: ``name`` of the reader, ``file``, ``ids`` (a file), ``cache`` (bytes), ``warm_up`` and ``seconds``;
            ``gpu``: whether rows go to a GPU; ``rank``
            of ``ranks`` that read at the same time, each its part of the ids.

    Returns:
        ``rows_per_s``; of the cache ``hit_rate`` and ``fill_s``, the time until the first rows were kept.
    """
    ids: Ids = np.load(job["ids"], mmap_mode="r")
    _drop_pages(job["file"])
    read, fill, finish = (_on_gpu if job["gpu"] else _on_cpu)(job)
    begin = time.perf_counter()
    fill(_part(ids[: job["counted"]], job))
    filled = time.perf_counter() - begin
    print("filled", flush=True)
    sys.stdin.readline()  # comes when all ranks have filled their caches
    ids = _part(ids[job["counted"] :], job)  # others than those by which the cache was filled
    position = _read_for(job["warm_up"], read, ids, 0)[0]
    finish()
    position, rows, seconds = _read_for(job["seconds"], read, ids, position)
    return {"rows_per_s": rows / seconds, "hit_rate": finish(), "fill_s": filled}


def _part(ids: Ids, job: dict[str, Any]) -> Ids:
    part: Ids = np.array_split(ids, job["ranks"])[job["rank"]]
    return part.copy()


def _read_for(seconds: float, read: Read, ids: Ids, position: int) -> tuple[int, int, float]:
    """Read on from a position; returns the next one, how many rows, and how long that took."""
    rows, begin = 0, time.perf_counter()
    while (took := time.perf_counter() - begin) < seconds:
        part = ids[position : position + _AT_ONCE]
        ends = read(part)[:, [0, -1]]
        ends = ends if isinstance(ends, np.ndarray) else ends.cpu().numpy()  # waits for the GPU
        if not (ends == part[:, None]).all():
            raise AssertionError(f"{job['name']} read wrong rows")
        rows += len(part)
        position = position + _AT_ONCE if position + _AT_ONCE < len(ids) else 0
    return position, rows, took


def _numpy_table(job: dict[str, Any]) -> Any:
    table = np.load(job["file"], mmap_mode="r")
    if job["name"] == RANDOM:
        table.base.madvise(mmap.MADV_RANDOM)
    return table


def _nothing(ids: Ids) -> None:
    pass


def _on_cpu(job: dict[str, Any]) -> tuple[Read, Callable[[Ids], None], Callable[[], float]]:
    """Return what reads rows, what fills the cache, and what gives the hit rate since it was called before."""
    if job["name"] in (NUMPY, RANDOM):
        table = _numpy_table(job)
        return lambda index: table[index], _nothing, lambda: 0.0
    import torch

    from manyhop import files
    from manyhop.features import BufferPool, cache_files, file_cache, gather, only_counting

    mapped, pool = files.open(job["file"]).mapped(), BufferPool()

    def read(index: Ids) -> Any:
        return gather([(mapped, torch.from_numpy(index))], pool=pool)[0].numpy()

    if job["name"] == MAPPED:
        return read, _nothing, lambda: 0.0

    def fill(ids: Ids) -> None:
        cache_files([mapped], job["cache"])
        with only_counting():  # as a loader does with its first batches
            read(ids)
        _keep_rows(mapped)

    def hit_rate() -> float:
        asked, kept = file_cache(mapped).take_counts()  # type: ignore[union-attr]
        return kept / max(asked, 1)

    return read, fill, hit_rate


def _on_gpu(job: dict[str, Any]) -> tuple[Read, Callable[[Ids], None], Callable[[], float]]:
    import torch

    from manyhop import files
    from manyhop.features import (
        CachedRows,
        RowRequest,
        Visits,
        cache_files,
        file_cache,
        gather,
        keep_hot,
        only_counting,
    )

    device = torch.device("cuda")
    torch.ones(1, device=device)
    if job["name"] in (NUMPY, RANDOM):
        table = _numpy_table(job)

        def send(index: Ids) -> Any:
            return torch.from_numpy(table[index]).pin_memory().to(device, non_blocking=True)

        return send, _nothing, lambda: 0.0
    mapped = files.open(job["file"]).mapped()
    source: Any = mapped

    def read(index: Ids) -> Any:
        return gather([(source, torch.from_numpy(index).to(device))])[0]

    def fill(ids: Ids) -> None:
        nonlocal source
        cache_files([mapped], job["cache"])
        parts = np.array_split(ids, -(-len(ids) // _COUNTED_AT_ONCE))
        if job["name"] == HOT:
            visits = Visits(device)
            for part in parts:
                visits.add([RowRequest(mapped, torch.from_numpy(part).to(device))])
            (source,) = keep_hot(visits.hottest(job["cache"]), device).values()
        with only_counting():
            for part in parts:
                read(part)
        _keep_rows(mapped)

    def hit_rate() -> float:
        asked, found = file_cache(mapped).take_counts()  # type: ignore[union-attr]
        if isinstance(source, CachedRows):
            asked, on_gpu = source.take_counts()
            found += on_gpu
        return found / max(asked, 1)

    return read, fill, hit_rate


def _keep_rows(mapped: Any) -> None:
    from manyhop.features import file_cache

    cache = file_cache(mapped)
    assert cache is not None
    cache.renew(mapped)
    while cache.is_renewing:
        time.sleep(0.01)


def _drop_pages(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


if __name__ == "__main__":
    job: dict[str, Any] = json.loads(sys.stdin.readline())
    if job["processes"] is not None:  # before anything else takes memory
        Path(job["processes"]).write_text(str(os.getpid()))
    print(json.dumps(measure(job)))
