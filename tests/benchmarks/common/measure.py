"""Interleaved timing: all contenders take turns, round after round, and only times of the same round are compared.

The speed of a shared machine drifts by more than the differences one looks for. A ratio of two times taken within a few
seconds of each other does not see the drift; the median over the rounds does not see the rounds that were disturbed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

MANYHOP = "manyhop"


class BatchRunner(Protocol):
    """Runs some batches."""

    def __call__(self, num_batches: int) -> int:
        """Runs so many batches and returns the number of edges sampled."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Contender:
    """One row of the table: one loader at one workload with a number of threads."""

    workload: str
    """What is run, the same for all its contenders."""

    name: str
    """Whose loader: ``"manyhop"`` or a peer."""

    threads: int
    """How many threads (or worker processes) run it."""

    run: BatchRunner
    """Runs batches."""

    turn: int | None = None
    """Batches per turn; ``None``: as many as fill a turn of ``min_turn_s``."""

    close: Callable[[], None] = lambda: None
    """Ends what is left running between turns."""


@dataclass(frozen=True, kw_only=True)
class Absent:
    """A peer that was not measured, at one workload or at all."""

    name: str
    reason: str
    workload: str | None = None


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What was measured of one contender, round by round; without what it takes to run it."""

    workload: str
    name: str
    threads: int
    seconds: list[float] = field(default_factory=list)
    """Seconds per batch."""
    edges: list[float] = field(default_factory=list)
    """Sampled edges per batch."""

    @property
    def ms_per_batch(self) -> float:
        """Median of the rounds."""
        return float(np.median(self.seconds)) * 1e3

    @property
    def edges_per_s(self) -> float:
        """Median of the rounds."""
        return float(np.median(np.divide(self.edges, self.seconds)))


@dataclass(frozen=True)
class Ratio:
    """Quartiles of a ratio over the rounds."""

    low: float
    median: float
    high: float


def time_ratio(timing: Timing, base: Timing) -> Ratio:
    """Time per sampled edge over that of ``base``: above 1 where ``base`` is faster. Both come from the same rounds."""
    return _ratio(np.divide(timing.seconds, timing.edges), np.divide(base.seconds, base.edges))


def batch_time_ratio(timing: Timing, base: Timing) -> Ratio:
    """Time per batch over that of ``base``, of the same rounds."""
    return _ratio(np.asarray(timing.seconds), np.asarray(base.seconds))


def _ratio(cost: npt.NDArray[np.float64], base: npt.NDArray[np.float64]) -> Ratio:
    low, median, high = np.quantile(cost / base, [0.25, 0.5, 0.75])
    return Ratio(float(low), float(median), float(high))


def measure(
    contenders: Sequence[Contender],
    rounds: int,
    min_turn_s: float,
    *,
    progress: Callable[[str], None] = lambda message: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Let all contenders take turns for a number of rounds, after a turn that does not count, then close them."""
    try:
        return _measure(contenders, rounds, min_turn_s, progress, clock)
    finally:
        for contender in contenders:
            contender.close()


def _measure(
    contenders: Sequence[Contender],
    rounds: int,
    min_turn_s: float,
    progress: Callable[[str], None],
    clock: Callable[[], float],
) -> list[Timing]:
    turns = [_warm_up(contender, min_turn_s, clock) for contender in contenders]
    timings = [Timing(workload=c.workload, name=c.name, threads=c.threads) for c in contenders]
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}")
        for i in range(len(contenders)):
            at = (i + number) % len(contenders)  # another one begins each round
            began = clock()
            edges = contenders[at].run(turns[at])
            timings[at].seconds.append((clock() - began) / turns[at])
            timings[at].edges.append(edges / turns[at])
    return timings


def _warm_up(contender: Contender, min_turn_s: float, clock: Callable[[], float]) -> int:
    """Run what the first turn has to compile, fork or allocate; returns the number of batches of a turn."""
    if contender.turn is not None:
        contender.run(contender.turn)
        return contender.turn
    contender.run(contender.threads)
    began = clock()
    contender.run(contender.threads)
    per_batch = (clock() - began) / contender.threads
    rows = math.ceil(min_turn_s / max(per_batch, 1e-6) / contender.threads)
    return contender.threads * min(max(rows, 1), 1000)


def find(timings: Sequence[Timing], workload: str, name: str, threads: int) -> Timing | None:
    """The timing of a contender, if it was measured."""
    for timing in timings:
        if (timing.workload, timing.name, timing.threads) == (workload, name, threads):
            return timing
    return None


def by_workload(timings: Sequence[Timing]) -> Mapping[str, list[Timing]]:
    """Timings grouped by workload, in order; manyhop first in each group, then by name, then by threads."""
    groups: dict[str, list[Timing]] = {}
    for timing in timings:
        groups.setdefault(timing.workload, []).append(timing)
    for group in groups.values():
        group.sort(key=lambda t: (t.name != MANYHOP, t.name, t.threads))
    return groups
