"""Atomic writes of files, and errors of full disks."""

from __future__ import annotations

import errno
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from manyhop.errors import CapacityError, InputError
from manyhop.system.units import in_units

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def writing(path: Path, nbytes: int) -> Iterator[None]:
    """Report the space that a file of ``nbytes`` lacks if the body, which writes it, fails.

    Raises:
        CapacityError: the disk is full.
        InputError: the file cannot be written for another reason.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise InputError(f"{path}: cannot be written: {error.strerror or error}.") from error
        raise CapacityError(
            f"{path}: expected room for {in_units(nbytes)} ({nbytes} bytes), got {error.strerror}: {_free(path)} free. "
            "Make room, or name a folder on another disk."
        ) from error


def unfinished(path: Path) -> Path:
    """Return a unique name in the folder of ``path`` for a file that is renamed to ``path`` when it is complete."""
    return path.with_name(f"{path.name[:50]}.{uuid.uuid4().hex[:12]}.partial")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name to write to. The file is renamed to ``path`` at the end, or removed after an error."""
    partial = unfinished(path)
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _free(path: Path) -> str:
    try:
        return f"{in_units(shutil.disk_usage(path.parent).free)} are"
    except OSError:
        return "it is not known how much is"
