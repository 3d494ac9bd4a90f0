"""An epoch of a loader: what its steps need of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from manyhop.loading.keys import BatchContext
from manyhop.loading.pipeline import Steps, Turn
from manyhop.sampling import BatchKey


class Epoch(NamedTuple):
    """An epoch of a loader."""

    seed: int
    """Of the batches of this rank."""

    number: int
    """Epoch in the keys of batches; 0 where the seed was drawn for this epoch."""

    to_index: Callable[[Any], Any]
    """Item -> positions of seeds."""

    steps: Steps | None
    """The exchanges with other ranks, where there are some."""

    def batch_context(self, batch: int, turn: Turn, first_call: int = 0) -> BatchContext:
        """Return the context in which a batch is made, after ``first_call`` calls of samplers."""
        return BatchContext(BatchKey(self.seed, self.number, batch), turn, first_call)

    def in_step(self, turn: Turn) -> AbstractContextManager[None]:
        """Return the context in which a batch, or a part of it, may gather rows of other nodes."""
        return nullcontext() if self.steps is None else self.steps.batch(turn.round)
