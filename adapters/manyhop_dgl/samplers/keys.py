"""Which key a sampler uses: that of the batch being made in this thread, else one of its own."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any

import torch

from manyhop.loading import current_key
from manyhop.sampling import BatchKey
from manyhop.sampling.random import Use, make_key
from manyhop_dgl.samplers.arguments import integer
from manyhop_dgl.samplers.seeding import draw, next_key


class Keys:
    """The keys of one sampler.

    Inside manyhop's loaders a call has the key of its batch. Elsewhere (DGL's own DataLoader, calls by hand) a call
    draws its key, so that ``dgl.seed`` and ``torch.manual_seed`` reproduce it; or, with a seed, keys are counted: the
    seed, and the number of the call. Worker processes and ranks have seeds of their own, derived from it.

    Args:
        seed: ``None``: each call draws.

    Raises:
        InputError: a seed that is no integer.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = None if seed is None else integer(seed, "seed")
        self._calls = itertools.count()

    def next(self, *, counts: bool = False) -> BatchKey:
        """Return the key of one call.

        Args:
            counts: draw a seed in the first call only, and count calls from there.
        """
        if current_key() is not None:
            return next_key()
        if self.seed is None and not counts:
            key, rank = next_key(), _rank()
            return key if rank == 0 else key._replace(seed=_seed(key.seed, rank, None))
        if self.seed is None:
            self.seed = draw()
        worker = torch.utils.data.get_worker_info()  # its seed is another one in each epoch
        return BatchKey(_seed(self.seed, _rank(), None if worker is None else worker.seed), 0, next(self._calls))

    def __getstate__(self) -> dict[str, object]:
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
