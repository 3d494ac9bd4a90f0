"""Free memory of this process."""

from __future__ import annotations

from pathlib import Path

from manyhop.errors import CapacityError


def available_memory() -> int | None:
    """Return the bytes that can be allocated before the machine, or the control group, runs out; ``None``: unknown."""
    limits = [n for n in (_meminfo(), _cgroup_v2(), _cgroup_v1()) if n is not None]
    return min(limits) if limits else None


def require_memory(what: str, needed: int, remedy: str) -> None:
    """Raise CapacityError if fewer than ``needed`` bytes are available."""
    free = available_memory()
    if free is not None and needed > free:
        raise CapacityError(f"{what} needs about {needed / 2**30:.2f} GiB, {free / 2**30:.2f} GiB are free. {remedy}")


def _meminfo() -> int | None:
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_v2() -> int | None:
    limit, used = _read("/sys/fs/cgroup/memory.max").strip(), _read("/sys/fs/cgroup/memory.current").strip()
    return _left(limit, used, _read("/sys/fs/cgroup/memory.stat"), "inactive_file")


def _cgroup_v1() -> int | None:
    base = "/sys/fs/cgroup/memory/memory."
    limit, used = _read(base + "limit_in_bytes").strip(), _read(base + "usage_in_bytes").strip()
    return _left(limit, used, _read(base + "stat"), "total_inactive_file")


def _left(limit: str, used: str, stat: str, reclaimable: str) -> int | None:
    """Return the limit minus the use, without the reclaimable page cache."""
    if not limit.isdigit() or not used.isdigit():
        return None
    cache = [int(line.split()[1]) for line in stat.splitlines() if line.split()[0] == reclaimable]
    return max(0, int(limit) - int(used) + sum(cache))


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
