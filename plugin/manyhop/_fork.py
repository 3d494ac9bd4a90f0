"""What forked processes do first."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_forked_children(call: Callable[[], object]) -> None:
    """Have ``call()`` run first in every process that is forked from this one; nothing where there is no fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)
