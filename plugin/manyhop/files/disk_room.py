"""Disks that are full, and files that cannot be written."""

from __future__ import annotations

import errno
import shutil
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


def _free(path: Path) -> str:
    try:
        return f"{in_units(shutil.disk_usage(path.parent).free)} are"
    except OSError:
        return "it is not known how much is"
