"""Which key a sampler uses: that of the batch being made in this thread, else one of its own, counted."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any

import torch

from manyhop.loading import current_key, next_key
from manyhop.sampling import BatchKey
from manyhop.sampling._random import Use, make_key
from manyhop_dgl._samplers_arguments import integer


class Keys:
    """The keys of one sampler.

    Inside manyhop's loaders a call has the key of its batch. Elsewhere (DGL's own DataLoader, calls by hand) keys are
    counted: the seed, and the number of the call. Worker processes and ranks have seeds of their own, derived from it.

    Args:
        seed: ``None``: drawn from torch's default generator, so that ``torch.manual_seed`` reproduces it.

    Raises:
        InputError: a seed that is no integer.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = int(torch.empty((), dtype=torch.int64).random_()) if seed is None else integer(seed, "seed")
        self._calls = itertools.count()

    def next(self) -> BatchKey:
        """The key of one call."""
        if current_key() is not None:
            return next_key()
        worker = torch.utils.data.get_worker_info()  # its seed is another one in each epoch
        return BatchKey(_seed(self.seed, _rank(), None if worker is None else worker.seed), 0, next(self._calls))

    def __getstate__(self) -> dict[str, Any]:
        calls = next(self._calls)
        self._calls = itertools.count(calls)
        return {"seed": self.seed, "calls": calls}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.seed = state["seed"]
        self._calls = itertools.count(state["calls"])


def _rank() -> int:
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


@lru_cache(maxsize=64)
def _seed(seed: int, rank: int, worker_seed: int | None) -> int:
    if rank > 0:
        seed = int(make_key(Use.RANK, seed, rank))
    return seed if worker_seed is None else int(make_key(Use.CALL, seed, worker_seed))
