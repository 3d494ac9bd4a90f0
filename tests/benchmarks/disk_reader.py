"""One process that reads rows for the benchmark of files: a job in JSON on stdin, what it found in JSON on stdout."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_EVERY_S = 0.02
_MADV_DONTNEED = 4


class PageLimit:
    """Bounds what the system keeps of a file by what a process leaves of its limit.

    A thread drops all pages of the file when these and the process's own memory exceed the limit. A control group
    would drop the oldest only, so more of a file is kept there.

    Args:
        path: a file that this process has mapped.
        nbytes: the limit.
    """

    def __init__(self, path: str, nbytes: int) -> None:
        self._path, self._nbytes = str(Path(path).resolve()), nbytes
        self._file = os.open(path, os.O_RDONLY)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.drops = 0
        threading.Thread(target=self._watch, name="page limit", daemon=True).start()

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(_EVERY_S):
            if self.resident() > max(0, self._nbytes - _own_memory()):
                self.drop()

    def resident(self) -> int:
        """Return the bytes of the file that the system keeps."""
        (begin, end), *_ = self._mappings() or [(0, 0)]
        pages = np.empty((end - begin) // mmap.PAGESIZE, np.uint8)
        if self._libc.mincore(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), ctypes.c_void_p(pages.ctypes.data)):
            return 0
        return int((pages & 1).sum(dtype=np.int64)) * mmap.PAGESIZE

    def drop(self) -> None:
        """Have the system forget the file; reads of it go on."""
        for begin, end in self._mappings():
            self._libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_DONTNEED)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)
        self.drops += 1

    def _mappings(self) -> list[tuple[int, int]]:
        """Return where the file is in memory, the largest part first."""
        found = []
        for line in Path("/proc/self/maps").read_text().splitlines():
            words = line.split(maxsplit=5)
            if len(words) == 6 and words[5] == self._path:
                begin, end = (int(word, 16) for word in words[0].split("-"))
                found.append((begin, end))
        return sorted(found, key=lambda part: part[0] - part[1])


def _own_memory() -> int:
    """Return the bytes of this process that are not pages of files."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))


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
            ``gpu``: whether rows go to a GPU; ``pages``: the limit of memory, where it is not the system's; ``rank``
            of ``ranks`` that read at the same time, each its part of the ids.

    Returns:
        ``rows_per_s``; of the cache ``hit_rate`` and ``fill_s``, the time until the first rows were kept.
    """
    ids: Ids = np.load(job["ids"], mmap_mode="r")
    _drop_pages(job["file"])
    read, fill, finish = (_on_gpu if job["gpu"] else _on_cpu)(job)
    if job["pages"] is not None:
        PageLimit(job["file"], job["pages"])
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
    """Return the ids of this rank."""
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
    """Return the same of readers whose rows, and ids, are on the GPU."""
    import torch

    from manyhop import files
    from manyhop.features import (
        CachedRows,
        GPUVisits,
        RowRequest,
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
            visits = GPUVisits(device)
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
    """Have the cache keep the rows that were counted, and wait for that."""
    from manyhop.features import file_cache

    cache = file_cache(mapped)
    assert cache is not None
    cache.renew(mapped)
    while cache.is_renewing:
        time.sleep(0.01)


def _drop_pages(path: str) -> None:
    """Have the system forget what it keeps of a file."""
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


if __name__ == "__main__":
    job: dict[str, Any] = json.loads(sys.stdin.readline())
    if job["processes"] is not None:  # before anything else takes memory
        Path(job["processes"]).write_text(str(os.getpid()))
    print(json.dumps(measure(job)))
