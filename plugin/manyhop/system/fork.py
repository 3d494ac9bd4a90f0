"""What forks wait for, and what forked processes do first."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol


class Lock(Protocol):
    """A lock that its owner may take again."""

    def acquire(self) -> object: ...
    def release(self) -> object: ...


def in_forked_children(call: Callable[[], object]) -> None:
    """Have ``call()`` run first in every process that is forked from this one; nothing where there is no fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


def hold_while_forking(lock: Lock) -> None:
    """Let forks wait until no other thread has a lock: in the child, that thread would never release it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
