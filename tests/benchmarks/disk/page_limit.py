"""A stand-in for a limit of memory where none can be set: the pages of a file that the system keeps are bounded."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from pathlib import Path

import numpy as np

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
