"""Fill caches of files before the first epoch: count the rows that a few batches read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from manyhop.features import FileCache, only_counting
from manyhop.loading.adapter import Adapter
from manyhop.loading.keys import BatchContext
from manyhop.loading.pipeline import BatchPlan, Turn
from manyhop.ranks import world
from manyhop.sampling import BatchKey

_MOST_BATCHES = 64


def warm_up_caches(adapter: Adapter[Any, Any], plan: BatchPlan, caches: Sequence[FileCache]) -> None:
    """Make batches of epoch 0 and drop them, until caches have counted enough reads. Runs no user code.

    Args:
        adapter: adapter of a loader that makes batches on the CPU.
        plan: the plan of the batches, with seed 0 instead of the loader's.
        caches: caches of the tensors that batches read.
    """
    assembler = adapter.assembler
    if assembler.runs_user_code or not adapter.seeds.has_times:
        return
    # Ranks of a node that share the caches begin at different batches, which may be those of all ranks.
    begin = len(plan) * world.current_rank() // world.current_size()
    for number in range(min(len(plan), _MOST_BATCHES)):
        if all(cache.has_enough_counts for cache in caches):
            return
        batch = (begin + number) % len(plan)
        with BatchContext(BatchKey(0, 0, batch), Turn(0, batch)), only_counting():
            made = assembler.make(torch.from_numpy(plan.few_indices(0, batch)))
            if not assembler.in_thread:
                assembler.complete(made)
