"""Seeds drawn where none is given: as ``dgl.seed`` or ``graphbolt.seed`` has it, else from torch's generator."""

from __future__ import annotations

import os

import torch

from manyhop import loading
from manyhop.sampling import BatchKey

_seeded: tuple[torch.Generator, int] | None = None  # and the process that seeded it


def seed(val: int) -> None:
    """Fix what all samplers and loaders draw from now on, those that are there already included.

    Loaders draw once per epoch, when it begins, and samplers that are used alone once per call. Before the first call,
    they draw from torch's default generator. What has a seed of its own (``seed=``) does not draw.

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
    """Return the key of one call of a sampler: of the batch being made in this thread, else drawn."""
    return loading.next_key(draw)
