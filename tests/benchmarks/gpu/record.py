"""A record of ``benchmarks gpu``: one or several runs, each with rows, what is missing, and where it was taken."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.gpu.job import Missing, Row
from benchmarks.gpu.limits import limit_seconds


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the command."""

    title: str
    header: Sequence[tuple[str, str]]
    rows: Sequence[Row]
    missing: Sequence[Missing]

    def of(self, part: str) -> list[Row]:
        """The rows of one part, of one workload after the other, by number of GPUs, manyhop first."""
        rows = [row for row in self.rows if row.part == part]
        order = {workload: i for i, workload in enumerate(dict.fromkeys(row.workload for row in rows))}
        return sorted(rows, key=lambda r: (order[r.workload], r.gpus, r.name != "manyhop", r.name))

    def limits(self, gpus: int) -> dict[str, Row]:
        """Limit -> its row, with so many GPUs at work; those of one GPU where that makes no difference."""
        found = {row.workload: row for row in self.rows if row.part == "limits" and row.gpus == 1}
        return found | {row.workload: row for row in self.rows if row.part == "limits" and row.gpus == gpus}

    def limit_s(self, row: Row) -> float | None:
        """Seconds that the hardware needs for what a row does; ``None`` where that was not measured."""
        return limit_seconds(row.work, self.limits(row.gpus))

    def ratio(self, row: Row) -> float | None:
        """Time of a row over that of manyhop's fastest at the same, per sampled edge where there are edges."""
        if row.name == "manyhop":
            return None
        mine = [
            _cost(other)
            for other in self.rows
            if (other.part, other.workload, other.gpus, other.name) == (row.part, row.workload, row.gpus, "manyhop")
        ]
        return _cost(row) / min(mine) if mine else None


def _cost(row: Row) -> float:
    return row.median_s / row.edges if row.edges and row.part == "sampling" else row.median_s


def join(runs: Sequence[Run]) -> list[Run]:
    """Runs over the same graph, with the same GPUs and versions, as one."""
    same: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        titles = dict(run.header)
        gpu = titles.get("GPU", "").partition(";")[0].partition(" x ")[2]
        same.setdefault((run.title, gpu, titles.get("Versions", "")), []).append(run)
    joined = []
    for some in same.values():
        header = [(label, value) for run in some for label, value in run.header]
        rows, missing = ([line for run in some for line in getattr(run, name)] for name in ("rows", "missing"))
        joined.append(Run(title=some[0].title, header=list(dict.fromkeys(header)), rows=rows, missing=missing))
    return joined


def dump(runs: Sequence[Run]) -> str:
    """The record as JSON."""
    return json.dumps({"runs": [dataclasses.asdict(run) for run in runs]}, indent=1) + "\n"


def load(text: str) -> list[Run]:
    """The opposite of :func:`dump`."""
    return [
        Run(
            title=run["title"],
            header=[(label, value) for label, value in run["header"]],
            rows=[Row(**row) for row in run["rows"]],
            missing=[Missing(**missing) for missing in run["missing"]],
        )
        for run in json.loads(text)["runs"]
    ]
