"""Loaders that share global batches among ranks: what their ranks agree on before the first batch."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import manyhop
from manyhop import World, _control
from manyhop.errors import InputError
from manyhop.pipeline import LoaderState, Uneven
from manyhop_pyg._facts import facts_of

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Ranks:
    """The ranks that share the batches of one loader."""

    title: str
    """Names the loader in errors; the same on all ranks, another for every loader."""

    world: World
    """Who they are."""

    uneven: Uneven
    """What happens where they cannot share the batches evenly."""

    timeout: float
    """Seconds to wait for each other."""

    def agree_on_state(self, state: LoaderState) -> None:
        """Check that all ranks load the same state.

        Raises:
            RankError: naming the difference, or the ranks that did not come in time.
        """
        facts = {"seed": state.seed, "epoch": state.epoch, "batch": state.batch}
        _control.agree(f"{self.title}: load_state_dict()", facts, timeout=self.timeout)


def check_options(distributed: bool, uneven: str | None, rank_timeout: float | None, kwargs: dict[str, Any]) -> None:
    """Raise InputError for arguments that do not go together."""
    if not distributed:
        for name, value in (("uneven", uneven), ("rank_timeout", rank_timeout)):
            if value is not None:
                raise InputError(
                    f"Expected {name} only with distributed=True, got {value!r}: leave it out, or let the ranks "
                    "share the batches."
                )
        return
    for name in ("sampler", "batch_sampler"):
        if kwargs.get(name) is not None:
            raise InputError(
                f"Expected no {name} with distributed=True, as the ranks share the loader's own batches, got a "
                f"{type(kwargs[name]).__name__}. Pass one or the other; with Lightning, which puts in a sampler of its "
                "own, also Trainer(use_distributed_sampler=False)."
            )
    if uneven not in ("pad", "drop", "error", None):
        raise InputError(f"Expected uneven to be 'pad', 'drop' or 'error', got {uneven!r}.")
    if rank_timeout is not None and not 0 < rank_timeout < math.inf:
        raise InputError(f"Expected rank_timeout in seconds, more than 0, got {rank_timeout!r}.")


def join_ranks(loader: Any, seed: int | None, drawn: int) -> tuple[Ranks, int]:
    """Compare a loader with those of the other ranks, which all have to come here. Returns its ranks and its seed.

    Args:
        loader: complete but for its seed.
        seed: the user's seed; ``None``: rank 0's ``drawn`` is used.
        drawn: a seed drawn on this rank.

    Raises:
        InputError: the batches cannot be shared as the user wants.
        RankError: ranks came with other arguments, or not in time.
    """
    timeout = loader.rank_timeout
    world = manyhop.init(timeout=timeout)
    # The same title on all ranks, also where their classes differ: it is what their answers are found by.
    _control.agree("a loader with distributed=True", facts_of(loader, seed), timeout=timeout)
    if seed is None:
        drawn = _control.exchange("seed of a loader", {"seed": drawn}, timeout=timeout)[0]["seed"]
    title = f"{type(loader).__name__} {next(_numbers)}"
    return Ranks(title, world, loader.uneven, timeout), drawn if seed is None else seed
