"""Tables of what was measured: text for the terminal, markdown for a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common.machine import describe
from benchmarks.common.measure import MANYHOP, Absent, Ratio, Timing, by_workload, find, time_ratio

_COLUMNS = ("workload", "loader", "threads", "ms per batch", "M edges/s", "time, manyhop = 1", "speed-up by threads")
_EXPLANATION = (
    "Medians over rounds in which all loaders take turns. 'time, manyhop = 1' is the time per sampled edge over\n"
    "that of manyhop with as many threads, in the same round: median (quartiles). Above 1, manyhop is faster."
)


@dataclass(frozen=True, kw_only=True)
class Section:
    """Workloads of one kind: what they are, and what was measured."""

    title: str
    timings: Sequence[Timing]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Anything else that was measured."""

    title: str
    columns: Sequence[str]
    rows: list[list[str]]


@dataclass(frozen=True, kw_only=True)
class Record:
    """The results of one run."""

    title: str
    header: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    absent: Sequence[Absent]
    base_workload: str
    """The workload with which the others' cost per sampled edge is compared."""
    tables: Sequence[Table] = ()


def print_and_save(text: str, folder: Path | None, name: str) -> None:
    """Print markdown, and save it as ``folder / name``; ``None``: no file is wanted."""
    print(text, end="", flush=True)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def opening(title: str, command: list[str]) -> list[str]:
    """Return the first lines of a record in markdown: its title, and where ``python tests/benchmarks`` took it."""
    return [f"# {title}", "", *(f"- {label}: {value}" for label, value in describe(command))]


def table(columns: Sequence[str], rows: Iterable[Iterable[object]] = ()) -> list[str]:
    """Return the lines of a table in markdown."""
    return [table_row(columns), "|" + "---|" * len(columns), *map(table_row, rows)]


def table_row(cells: Iterable[object]) -> str:
    """Return a row of a table in markdown."""
    return f"| {' | '.join(map(str, cells))} |"


def as_text(record: Record) -> str:
    """The record for a terminal."""
    width = max(len(label) for label, _ in record.header)
    lines = [
        record.title,
        "",
        *(f"{label:{width}}  {value}" for label, value in record.header),
        "",
        _EXPLANATION,
    ]
    for title, columns, rows in _tables(record):
        lines += ["", title, *_aligned(columns, rows)]
    lines += ["", *_not_measured(record.absent)]
    return "\n".join(lines) + "\n"


def as_markdown(record: Record, plot: str) -> str:
    """The record for a file; ``plot`` is the name of the picture next to it."""
    lines = [
        f"# {record.title}",
        "",
        *(f"- {label}: {value}" for label, value in record.header),
        "",
        _EXPLANATION,
    ]
    lines += ["", f"![Sampled edges per second]({plot})"]
    for title, columns, rows in _tables(record):
        lines += ["", f"## {title}", "", *table(columns, rows)]
    notes = _not_measured(record.absent)
    if notes:
        lines += ["", f"## {notes[0]}", "", *(f"- {note.strip()}" for note in notes[1:])]
    return "\n".join(lines) + "\n"


def _tables(record: Record) -> Iterable[tuple[str, Sequence[str], list[list[str]]]]:
    for section in record.sections:
        if section.timings:
            yield section.title, _COLUMNS, _rows(section.timings)
    for other in record.tables:
        yield other.title, other.columns, other.rows
    modes = _mode_rows(record)
    if modes:
        columns = ("workload", "ns per sampled edge", f"{record.base_workload} = 1")
        yield "Sampling by manyhop on one thread: cost per sampled edge", columns, modes


def _rows(timings: Sequence[Timing]) -> list[list[str]]:
    rows = []
    for workload, group in by_workload(timings).items():
        for timing in group:
            mine = find(group, workload, MANYHOP, timing.threads)
            one = find(group, workload, timing.name, 1)
            rows.append(
                [
                    workload,
                    timing.name,
                    str(timing.threads),
                    f"{timing.ms_per_batch:.2f}",
                    f"{timing.edges_per_s / 1e6:.2f}",
                    show(time_ratio(timing, mine)) if mine is not None and mine is not timing else "",
                    show(time_ratio(one, timing)) if one is not None and one is not timing else "",
                ]
            )
    return rows


def _mode_rows(record: Record) -> list[list[str]]:
    timings = record.sections[0].timings if record.sections else []
    base = find(timings, record.base_workload, MANYHOP, 1)
    if base is None:
        return []
    rows = []
    for workload in by_workload(timings):
        timing = find(timings, workload, MANYHOP, 1)
        if timing is not None:
            ns = float(np.median(np.divide(timing.seconds, timing.edges))) * 1e9
            rows.append([workload, f"{ns:.1f}", "" if timing is base else show(time_ratio(timing, base))])
    return rows


def show(ratio: Ratio) -> str:
    """Median and quartiles."""
    return f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"


def _aligned(columns: Sequence[str], rows: list[list[str]]) -> list[str]:
    table = [list(columns), *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(columns))]
    return [
        "  ".join(
            cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    ]


def _not_measured(absent: Sequence[Absent]) -> list[str]:
    if not absent:
        return []
    reasons: dict[tuple[str, str], list[str]] = {}
    for peer in absent:
        workloads = reasons.setdefault((peer.name, peer.reason), [])
        if peer.workload is not None and peer.workload not in workloads:
            workloads.append(peer.workload)
    lines = []
    for (name, reason), workloads in reasons.items():
        at = f" ({'; '.join(workloads)})" if workloads else ""
        lines.append(f"  {name}{at}: {reason}")
    return ["Not measured", *lines]
