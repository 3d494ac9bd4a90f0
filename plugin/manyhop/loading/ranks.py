"""Loaders whose ranks share global batches: agreement, exchanges and the end of a run."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import manyhop
from manyhop import World
from manyhop.features import RowExchange
from manyhop.loading.iterator import EpochIterator
from manyhop.loading.lockstep import EpochExchanges
from manyhop.loading.pipeline import UnevenRule, WorkerThreads, end_workers
from manyhop.ranks import control
from manyhop.ranks.watch import Iteration, Watch, announce_end
from manyhop.ranks.world import at_shutdown

MakeExchange: TypeAlias = Callable[[str, float], RowExchange | None]
"""Builds the exchange of a loader, from its title and a timeout, on all ranks; ``None``: not needed."""

_numbers = itertools.count(1)


class Ranks:
    """The ranks that share the batches of one loader. The copy of a loader gets a new watch and a new exchange.

    The title names the loader in errors. It is equal on all ranks, and unique per loader.
    """

    def __init__(self, title: str, world: World, uneven: UnevenRule, timeout: float) -> None:
        self.title, self.world, self.uneven, self.timeout = title, world, uneven, timeout
        self._watch: Watch | None = None
        self._exchange: RowExchange | None = None
        self._exchanges: EpochExchanges | None = None

    def prepare(self, make_exchange: MakeExchange) -> None:
        """Prepare iterations of the complete loader. All ranks call it."""
        self._watch = Watch(self.title, timeout=self.timeout)
        self._exchange = make_exchange(self.title, self.timeout)
        self._end_with_run()

    def forget_exchange(self) -> None:
        """Create a new exchange in the next epoch, for GPUs instead of CPUs. All ranks call it."""
        self._end_exchange()
        self._exchange = self._exchanges = None

    def _end_exchange(self) -> None:
        """Notify other ranks that may wait for this one, and release the connections."""
        if self._exchanges is not None:
            self._exchanges.finish()
        if self._exchange is not None:
            self._exchange.close()

    def _end_with_run(self) -> None:
        """Register the end of threads, then of the exchange, before that of memory over GPUs and the process group."""
        if self._exchange is not None:
            ours = weakref.WeakMethod(self._end_exchange)
            at_shutdown(lambda: None if (end := ours()) is None else end())
        at_shutdown(_end_threads)

    def begin(
        self, make_exchange: MakeExchange | None, epoch: int, rounds: int
    ) -> tuple[EpochExchanges | None, Iteration]:
        """Begin an iteration. Return its exchanges, if tensors are spread over nodes, and its watch.

        Args:
            make_exchange: builds the exchange; ``None``: each rank has all rows.
            epoch: number of the epoch.
            rounds: number of batches of this rank.

        Raises:
            RankError: another rank has failed, or did not finish the previous epoch in time.
        """
        is_new = self._watch is None  # the loader is a copy
        if self._watch is None:
            self._watch = Watch(self.title, timeout=self.timeout)
        if make_exchange is not None:
            if self._exchange is None:  # the loader is a copy, or has new data
                self._exchange = make_exchange(self.title, self.timeout)
                is_new = True
            if self._exchanges is not None:
                self._exchanges.finish()
            assert self._exchange is not None
            self._exchanges = EpochExchanges(self._exchange, epoch, rounds)
        if is_new:
            self._end_with_run()
        if make_exchange is None or self._exchanges is None:
            return None, self._watch.begin(epoch)
        exchanges = self._exchanges
        return exchanges, self._watch.begin(epoch, exchanges.close, exchanges.rows_under_way)

    def begun(self, iterator: EpochIterator) -> None:
        """Register an iteration, to end it with the run."""
        _iterators.add(iterator)
        if iterator.workers is not None:
            _running.add(iterator.workers)

    def agree(self, what: str, facts: dict[str, Any]) -> None:
        """Check that all ranks pass the same facts.

        Raises:
            RankError: naming the difference, or the ranks that are late.
        """
        control.agree(f"{self.title}: {what}", facts, timeout=self.timeout)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_watch": None, "_exchange": None, "_exchanges": None}


# Of all loaders whose ranks share batches. An iterator may outlive its loader, and threads their iterator.
_iterators: weakref.WeakSet[EpochIterator] = weakref.WeakSet()
_running: weakref.WeakSet[WorkerThreads] = weakref.WeakSet()


def _end_threads() -> None:
    announce_end()  # before exchanges end, which other ranks enter after reading it
    for iterator in list(_iterators):
        iterator.end()
    end_workers(_running)
    _running.clear()  # each loader calls this: a stuck thread is waited for once


def join_ranks(
    kind: str,
    facts: Callable[[int | None], dict[str, Any]],
    seed: int | None,
    draw: Callable[[], int],
    *,
    uneven: UnevenRule,
    timeout: float,
) -> tuple[Ranks, int]:
    """Compare a loader with those of the other ranks, which all call this. Return its ranks and its seed.

    ``facts(seed)`` returns the facts that must be equal on all ranks. Without a seed, rank 0 draws it.

    Raises:
        RankError: ranks pass different arguments, or are late.
    """
    world = manyhop.init(timeout=timeout)
    # The title, by which answers are found, must not depend on the class, which may differ.
    control.agree("a loader of several ranks", facts(seed), timeout=timeout)
    if seed is None:
        seed = int(control.exchange("seed of a loader", {"seed": draw()}, timeout=timeout)[0]["seed"])
    return Ranks(f"{kind} {next(_numbers)}", world, uneven, timeout), seed
