"""Predictions beside what a record of ``manyhop bench gpu`` has measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from manyhop.costs import Cluster, Machine, predict
from manyhop_bench.common.report import table
from manyhop_bench.gpu.job import Row
from manyhop_bench.gpu.record import Run
from manyhop_bench.machine.calibrate import Measured, samples_by_cugraph

GOAL = 0.15
"""Predictions are to be within this share of what was measured."""

_CACHED = 0.2  # of the rows, where memory suffices: manyhop.placement.gpu
_COLUMNS = ("part", "workload", "GPUs", "features", "measured, ms", "predicted, ms", "error", "bound by")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One row, measured and predicted, in seconds."""

    row: Row
    features: str
    predicted: float
    bound: str

    @property
    def error(self) -> float:
        """Share by which the prediction is too high."""
        return self.predicted / self.row.median_s - 1


def compare(run: Run, machine: Machine) -> Iterator[Compared]:
    """Return predictions for manyhop's loaders and epochs, but not for threads, which are not modelled."""
    measured = Measured.of(run)
    seen: list[list[float]] = []  # on one GPU, both scalings are one measurement
    for row in (*run.of("loader"), *run.of("epoch")):
        by_cugraph = samples_by_cugraph(row)
        features = row.setting
        for how in ("cuGraph", "DDP", "captured"):
            features = features.removesuffix(how).rstrip(", ")
        features = features or "replica"
        if by_cugraph and machine.cugraph is None:
            continue
        if row.name != "manyhop" or features not in ("replica", "sharded") or row.seconds in seen:
            continue
        seen.append(row.seconds)
        sharded = features == "sharded"
        cluster = Cluster(
            gpus_per_node=row.gpus,
            topology="distributed" if by_cugraph else "device",
            features="sharded" if sharded else "device",
            cache=_CACHED if sharded else 0.0,
        )
        times = predict(measured.workload(row), cluster, machine)
        loads = row.part == "loader"
        amounts = times.loading if loads else times.training
        yield Compared(
            row=row,
            features=row.setting or "replica",
            predicted=(times.loader_epoch_s if loads else times.epoch_s) / times.steps,
            bound=max(amounts, key=lambda resource: amounts[resource]),
        )


def as_table(compared: Sequence[Compared]) -> list[str]:
    """Return a markdown table."""
    rows = []
    for one in compared:
        large = f"**{one.error:+.0%}**" if abs(one.error) > GOAL else f"{one.error:+.0%}"
        milliseconds = (f"{1e3 * seconds:.3f}" for seconds in (one.row.median_s, one.predicted))
        rows.append((one.row.part, one.row.workload, one.row.gpus, one.features, *milliseconds, large, one.bound))
    return table(_COLUMNS, rows)


def summary(compared: Sequence[Compared]) -> str:
    """Return how many predictions are within the goal."""
    good = sum(abs(one.error) <= GOAL for one in compared)
    return f"{good} of {len(compared)} predictions are within {GOAL:.0%} of what was measured."
