"""Batches that nobody asked for, by which it is found which rows of files batches ask for often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from manyhop.features import FileCache, only_counting
from manyhop.loading.adapter import Adapter
from manyhop.loading.keys import making
from manyhop.pipeline import BatchPlan, Turn
from manyhop.sampling import BatchKey

_MOST_BATCHES = 64


def rehearse(adapter: Adapter[Any, Any], plan: BatchPlan, caches: Sequence[FileCache]) -> None:
    """Make the first batches of epoch 0 and drop them, until caches know enough. Runs no code of the user.

    Args:
        adapter: of a loader whose batches are made on the CPU.
        plan: which seeds are in which batch. Seed 0, whatever the loader's.
        caches: of what the batches take rows from.
    """
    assembler = adapter.assembler
    if assembler.runs_user_code:
        return
    for batch in range(min(len(plan), _MOST_BATCHES)):
        if all(cache.knows_enough for cache in caches):
            return
        with making(BatchKey(0, 0, batch), Turn(0, batch)), only_counting():
            made = assembler.make(torch.from_numpy(plan.few_indices(0, batch)))
            if not assembler.in_thread:
                assembler.complete(made)
