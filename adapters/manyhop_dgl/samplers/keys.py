"""The key of a sampler's call: the current batch's, or its own."""

from __future__ import annotations

import itertools
import os
from functools import lru_cache
from typing import Any

import torch

from manyhop import loading
from manyhop.arguments import integer
from manyhop.loading import current_key
from manyhop.sampling import BatchKey
from manyhop.sampling.random import Use, make_key

_seeded: tuple[torch.Generator, int] | None = None  # and the process that seeded it


def seed(val: int) -> None:
    """Fix all draws of samplers and loaders that follow, also of existing ones.

    Loaders draw once per epoch, when it begins, and samplers that are used alone once per call. Before the first call,
    they draw from torch's default generator. Samplers and loaders with ``seed=`` do not draw.

    Args:
        val: any integer.
    """
    global _seeded
    _seeded = torch.Generator().manual_seed(int(val) & (1 << 64) - 1), os.getpid()


def draw() -> int:
    """Draw a seed.

    In a worker process of torch's ``DataLoader`` it comes from torch's generator, which has another seed in each worker
    and epoch, unless the worker itself called :func:`seed`: workers are copies, and would all draw the same.
    """
    if _seeded is None:
        return loading.draw_seed()
    own, process = _seeded
    is_copy = process != os.getpid() and torch.utils.data.get_worker_info() is not None
    return loading.draw_seed(None if is_copy else own)


def next_key() -> BatchKey:
    """Return the key of one call of a sampler: the current batch's, or a drawn one."""
    return loading.next_key(draw)


class Keys:
    """The keys of one sampler.

    Inside manyhop's loaders a call has the key of its batch. Elsewhere (DGL's own DataLoader, calls by hand) a call
    draws its key, so that ``dgl.seed`` and ``torch.manual_seed`` reproduce it; or, with a seed, keys are counted: the
    seed, and the number of the call. Worker processes and ranks derive their own seeds from it.

    Args:
        seed: ``None``: each call draws.

    Raises:
        InputError: a seed that is not an integer.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = None if seed is None else integer("seed", seed)
        self._calls = itertools.count()

    def next(self, *, counts: bool = False) -> BatchKey:
        """Return the key of one call.

        Args:
            counts: draw a seed in the first call only, and count the calls.
        """
        if current_key() is not None:
            return next_key()
        if self.seed is None and not counts:
            key, rank = next_key(), _rank()
            return key if rank == 0 else key._replace(seed=_seed(key.seed, rank, None))
        if self.seed is None:
            self.seed = draw()
        worker = torch.utils.data.get_worker_info()  # its seed changes in each epoch
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
