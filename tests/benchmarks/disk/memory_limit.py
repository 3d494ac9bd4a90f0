"""A limit of the memory of processes, their page cache included, where this process may set one (Linux; root)."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

_VERSION_1 = Path("/sys/fs/cgroup/memory")
_VERSION_2 = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def memory_limit(nbytes: int) -> Iterator[Path | None]:
    """Make a control group of so many bytes; yields its file for the ids of processes, ``None`` where it may not be."""
    folder, name = (
        (_VERSION_1, "memory.limit_in_bytes") if (_VERSION_1 / "cgroup.procs").exists() else (_VERSION_2, "memory.max")
    )
    with _control_of_memory(folder / "cgroup.subtree_control"):
        yield from _group(folder, name, nbytes)


def _group(folder: Path, name: str, nbytes: int) -> Iterator[Path | None]:
    group = folder / f"manyhop-bench-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    try:
        try:
            (group / name).write_text(str(nbytes))
            processes: Path | None = group / "cgroup.procs"
        except OSError:
            processes = None
        yield processes
    finally:
        for _ in range(50):  # a process that has ended leaves it a moment later
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


@contextlib.contextmanager
def _control_of_memory(file: Path) -> Iterator[None]:
    """Let groups of version 2 limit memory in the body, where their parent does not allow it so far."""
    added = False
    with contextlib.suppress(OSError):
        if "memory" not in file.read_text().split():
            file.write_text("+memory")
            added = True
    try:
        yield
    finally:
        if added:
            with contextlib.suppress(OSError):  # another group needs it by now
                file.write_text("-memory")
