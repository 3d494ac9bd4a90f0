"""The key of a sampler's call: that of the batch that the thread is making, otherwise one drawn for the call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from manyhop.arguments import integer
from manyhop.errors import InputError
from manyhop.features import Exchanging
from manyhop.loading.pipeline import BatchPlan, RankBatch
from manyhop.sampling import BatchKey
from manyhop.sampling.random import Use, make_key

_MOST_BATCHES = 64


class BatchContext:  # a generator would cost three times as much
    """Context of one batch: samplers called by this thread derive their keys from it, and gathers exchange rows in it.

    ``rank_batch`` is ``None`` if the batch is not returned to the caller; ``first_call`` is the number of earlier calls
    for the batch; ``calls``, after the body, includes those in it. ``exchange`` gathers rows of other nodes; ``None``:
    that of the surrounding context. ``failed`` is called with an exception of the body.
    """

    __slots__ = ("_before", "_failed", "_first_call", "calls", "exchange", "key", "rank_batch")

    def __init__(
        self,
        key: BatchKey | None,
        rank_batch: RankBatch | None,
        first_call: int = 0,
        exchange: Exchanging | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        self.key, self.rank_batch, self._first_call = key, rank_batch, first_call
        self.exchange, self._failed = exchange, failed
        self.calls = first_call

    def __enter__(self) -> BatchContext:
        before = self._before = _thread.context
        self.calls = self._first_call
        if self.exchange is None:
            self.exchange = before.exchange
        _thread.context = self
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        _thread.context = self._before
        if self._failed is not None and isinstance(error, Exception):
            self._failed(error)


def first_batches(plan: BatchPlan, first: int = 0, *, received: bool) -> Iterator[Tensor]:
    """Yield the positions of the seeds of some batches of epoch 0, each in its context, to learn what batches read.

    Args:
        first: number of the first of them.
        received: whether the caller's batches are made in the same way, so that they have a ``RankBatch``.
    """
    for number in range(min(len(plan), _MOST_BATCHES)):
        batch = (first + number) % len(plan)
        with BatchContext(BatchKey(0, 0, batch), RankBatch(0, batch) if received else None):
            yield torch.from_numpy(plan.few_indices(0, batch))


class _Thread(threading.local):
    context = BatchContext(None, None)
    """Context of the batch that this thread is making. All threads share one for calls outside of batches."""


_thread = _Thread()


def current_batch() -> RankBatch | None:
    """Return the batch that this thread is making; ``None`` outside of a loader's iteration."""
    return _thread.context.rank_batch


def current_key() -> BatchKey | None:
    """Return the key of the batch that this thread is making; ``None`` outside of batches."""
    return _thread.context.key


def current_exchange() -> Exchanging | None:
    """Return the gather of rows of other nodes for this thread's batch; ``None`` outside of such a batch."""
    return _thread.context.exchange


def draw_seed(generator: torch.Generator | None = None) -> int:
    """Draw a seed from a generator (default: torch's), as torch's ``DataLoader`` draws its base seed."""
    device = "cpu" if generator is None else generator.device  # regardless of torch.set_default_device
    return int(torch.empty((), dtype=torch.int64, device=device).random_(generator=generator))


def batch_key(key: object) -> BatchKey:
    """Return a user's key as ``BatchKey``.

    Raises:
        InputError: anything except three integers.
    """
    if type(key) is tuple and len(key) == 3 and type(key[0]) is type(key[1]) is type(key[2]) is int:
        return BatchKey(*key)  # the usual case, quickly
    if not isinstance(key, Sequence) or len(key) != 3:
        raise InputError(f"Expected key as (seed, epoch, batch), got {key!r}.")
    return BatchKey(*[integer("each part of key", part) for part in key])


def next_key(draw: Callable[[], int] = draw_seed) -> BatchKey:
    """Return the key of one call of a sampler.

    The first call for a batch uses the batch's key, later calls use keys derived from it. Outside of a loader's
    iteration, ``draw()`` returns the seed of the key; by default ``torch.manual_seed`` reproduces the call.
    """
    context = _thread.context
    key, calls = context.key, context.calls
    if key is None:
        return BatchKey(int(make_key(Use.CALL, draw())), 0, 0)
    context.calls = calls + 1
    return key if calls == 0 else key._replace(seed=int(make_key(Use.CALL, key.seed, calls)))
