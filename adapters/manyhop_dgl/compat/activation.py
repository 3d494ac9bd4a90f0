"""Be asked before Python looks for DGL's modules, in this process and in those that it starts."""

from __future__ import annotations

import importlib
import multiprocessing.spawn
import os
import sys
import threading
from collections.abc import Callable

from manyhop_dgl.compat.finder import FOLLOWED, Finder

_lock = threading.Lock()
_preparation_data = multiprocessing.spawn.get_preparation_data


def activate() -> None:
    """Make ``import dgl`` work. Called when ``manyhop_dgl`` is imported; calling it again changes nothing.

    Processes that ``multiprocessing`` spawns activate it first of all, so that they can unpickle graphs.
    """
    with _lock:
        if any(isinstance(finder, Finder) for finder in sys.meta_path):
            return
        _forget_a_failed_import()
        _choose_the_backend()
        sys.meta_path.insert(0, Finder())
        for name, follow in FOLLOWED.items():
            if name in sys.modules:
                follow(sys.modules[name])
        multiprocessing.spawn.get_preparation_data = _with_compat


def _forget_a_failed_import() -> None:
    """Where ``import dgl`` failed before (in a cell of a notebook), the next one starts afresh.

    Python has dropped the package then, but kept those of its modules that had been imported. Found again, they would
    not become attributes of the new package.
    """
    if "dgl" not in sys.modules:
        for name in [name for name in sys.modules if name.startswith("dgl.")]:
            del sys.modules[name]
        importlib.invalidate_caches()


def _choose_the_backend() -> None:
    """Where nobody has, DGL takes torch, and writes that down in the home directory: which may be read-only, and which
    several processes then do at once, while others read the half-written file.
    """
    folder = os.environ.get("DGLDEFAULTDIR") or os.path.join(os.path.expanduser("~"), ".dgl")
    if not os.path.exists(os.path.join(folder, "config.json")):
        os.environ.setdefault("DGLBACKEND", "pytorch")


def _with_compat(name: str) -> dict[str, object]:
    """What ``multiprocessing`` sends to a new process first; unpickling it activates this there."""
    return {__name__: _ACTIVATE, **_preparation_data(name)}


class _ActivateWhenUnpickled:
    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return activate, ()


_ACTIVATE = _ActivateWhenUnpickled()
