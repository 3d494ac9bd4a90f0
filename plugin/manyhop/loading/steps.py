"""The steps of an epoch's batches on a CPU: what a thread does for a batch, and what the caller does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from manyhop.loading.adapter import Adapter
from manyhop.loading.epoch import Epoch
from manyhop.loading.iterator import Item
from manyhop.system.ranges import ranged


def steps_on_cpu(
    adapter: Adapter[Any, Any], epoch: Epoch
) -> tuple[Callable[[int, Item], Any], Callable[[int, Any], Any] | None]:
    """Return how a thread makes a batch, and how the caller finishes it; ``None``: nothing is left to do."""
    assembler = adapter.assembler
    in_thread = assembler.in_thread
    if in_thread and not assembler.hands_out:

        @ranged("assemble")
        def make_whole(batch: int, item: Item) -> Any:
            turn, index = item
            with epoch.batch_context(batch, turn), epoch.in_step(turn):
                return assembler.make(epoch.to_index(index))

        return make_whole, None

    @ranged("assemble")
    def make(batch: int, item: Item) -> Any:
        turn, index = item
        with epoch.batch_context(batch, turn), epoch.in_step(turn):
            return turn, assembler.make(epoch.to_index(index))

    def finish(batch: int, made: Any) -> Any:
        turn, value = made
        with epoch.batch_context(batch, turn, first_call=1):
            if not in_thread:
                with epoch.in_step(turn):
                    value = assembler.complete(value)
            return assembler.hand_out(value)

    return make, finish
