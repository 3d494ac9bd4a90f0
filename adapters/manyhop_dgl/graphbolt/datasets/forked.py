"""Work in processes that were forked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from manyhop.system.fork import in_forked_children


class _Process:
    is_forked = False


def _note() -> None:
    _Process.is_forked = True


in_forked_children(_note)


@contextmanager
def on_one_core_if_forked() -> Iterator[None]:
    """In the body, torch's operators use no other threads in a process that was forked.

    OpenMP does not survive a fork: where the parent's operators have used several threads, the first operator of the
    child that does so waits for ever for threads which only the parent has.
    """
    before = torch.get_num_threads()
    if not _Process.is_forked or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
