"""Detection of truncated files that this process has mapped."""

from __future__ import annotations

import mmap
import weakref
from os import PathLike

from manyhop.errors import InputError

_files: weakref.WeakKeyDictionary[mmap.mmap, tuple[str, int]] = weakref.WeakKeyDictionary()


def watch(memory: mmap.mmap, path: str | PathLike[str], end: int) -> None:
    """Register a mapped file for :func:`check_mapped_files`. Its first ``end`` bytes are needed."""
    _files[memory] = str(path), end


def check_mapped_files() -> None:
    """Check that no mapped file has been truncated, with one ``fstat`` each.

    Reading beyond the end of a file would end the process with SIGBUS, without a message.

    Raises:
        InputError: a file has been truncated.
    """
    for memory, (path, end) in list(_files.items()):
        if (size := memory.size()) < end:
            raise InputError(
                f"{path}: expected {end} bytes, as when the file was mapped, got {size}: it has been truncated while "
                "in use. Write the file and start the program again. To replace a file that is in use, write "
                "a new one and rename it."
            )
