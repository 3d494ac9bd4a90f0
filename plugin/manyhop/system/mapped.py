"""Files that are memory of this process, and whether they are still whole."""

from __future__ import annotations

import mmap
import weakref
from os import PathLike

from manyhop.errors import InputError

_files: weakref.WeakKeyDictionary[mmap.mmap, tuple[str, int]] = weakref.WeakKeyDictionary()


def watch(memory: mmap.mmap, path: str | PathLike[str], end: int) -> None:
    """Let :func:`check_mapped_files` check a mapped file, of which the first ``end`` bytes are needed."""
    _files[memory] = str(path), end


def check_mapped_files() -> None:
    """Look whether the files that are mapped are as long as they must be: one ``fstat`` each.

    Reading what a file has lost would end the process with SIGBUS, without a message.

    Raises:
        InputError: a file has been truncated; names it.
    """
    for memory, (path, end) in list(_files.items()):
        if (size := memory.size()) < end:
            raise InputError(
                f"{path}: expected {end} bytes, as when the file was mapped, got {size}: it has been truncated while "
                "in use. Write the file again and start the program anew. To replace a file that is in use, write "
                "another one and rename it."
            )
