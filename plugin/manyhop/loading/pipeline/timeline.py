"""Timelines of the latest batches: as a picture, or as traces for Chrome and Perfetto that can be merged."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from manyhop.errors import InputError, MissingExtraError
from manyhop.loading.pipeline.stats import Interval, Stage, Stats
from manyhop.ranks import world

# Trace event format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. A process is a
# rank, a thread is a lane. Times are microseconds since the first event; ``otherData`` has its wall clock time.

FilePath: TypeAlias = str | PathLike[str]
_START = "start_unix_ns"


def save_trace(intervals: Sequence[Interval], lanes: Sequence[str], path: FilePath) -> None:
    """Save the intervals of this rank.

    ``lanes`` are the names of the threads, from top to bottom.
    """
    begin, pid = min(i.start for i in intervals), world.current_rank()
    start = time.time_ns() - time.perf_counter_ns() + round(begin * 1e9)
    number = {name: tid for tid, name in enumerate(lanes, 1)}  # Perfetto reserves thread 0
    events = [_name("process", pid, 1, f"rank {pid} on {socket.gethostname()}")]
    events += [_name("thread", pid, tid, name) for name, tid in number.items()]
    events += [
        {
            "name": i.stage,
            "cat": "manyhop",
            "ph": "X",
            "pid": pid,
            "tid": number[i.thread],
            "ts": _microseconds(i.start - begin),
            "dur": _microseconds(i.end - i.start),
            "args": {"batch": i.batch},
        }
        for i in intervals
    ]
    _write(events, start, path)


def merge_traces(paths: Sequence[FilePath], out: FilePath) -> None:
    """Merge timelines of ranks, or loaders, into one file, on the wall clock.

    Ranks of a node share that clock. Clocks of different nodes are as exact as their synchronisation (NTP, PTP).

    Args:
        paths: files of :func:`save_trace`, or of this function.
        out: the file to write.

    Raises:
        InputError: a file is not a timeline, or the file to write is one of them.
    """
    if Path(out).exists() and any(Path(path).exists() and Path(path).samefile(out) for path in paths):
        raise InputError(
            f"Expected a new file for the timelines, got {str(out)!r}, which is one of them. Name another."
        )
    traces = [_read(path) for path in paths]
    if not traces:
        raise InputError("Expected the timeline of at least one rank, got none. Name the files.")
    start = min(trace["otherData"][_START] for trace in traces)
    events: list[dict[str, Any]] = []
    lanes: dict[int, int] = {}  # last one of each rank: its other loaders are below
    for trace, path in zip(traces, paths, strict=True):
        later = (trace["otherData"][_START] - start) / 1e3
        first = dict(lanes)
        for event in trace["traceEvents"]:
            pid = event["pid"]
            event["tid"] += first.get(pid, 0)
            lanes[pid] = max(lanes.get(pid, 0), event["tid"])
            if event["ph"] == "X":
                event["ts"] = round(event["ts"] + later, 3)
            elif event["name"] == "thread_name" and pid in first:
                event["args"]["name"] += f" ({Path(path).stem})"
            events.append(event)
    _write(events, start, out)


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": f"{kind}_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _microseconds(seconds: float) -> float:
    return round(max(0.0, seconds) * 1e6, 3)


def _read(path: FilePath) -> dict[str, Any]:
    try:
        trace: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        complete = all({"name", "ph", "pid", "tid"} <= event.keys() for event in trace["traceEvents"])
        if not complete or not isinstance(trace["otherData"][_START], int):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError(f"Expected a timeline that loader.timeline() saved as .json, got {str(path)!r}.") from None
    return trace


def _write(events: list[dict[str, Any]], start: int, path: FilePath) -> None:
    data = {"clock": "wall clock of each node", _START: start}
    trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": data}
    Path(path).write_text(json.dumps(trace), encoding="utf-8")


_COLORS: dict[Stage, str] = {
    "sample": "#2b6cb0",
    "gather": "#2f855a",
    "assemble": "#b7791f",
    "compile": "#6b46c1",
    "wait": "#e53e3e",
    "step": "#a0aec0",
}
_DRAWN = 16  # batches: more would be too thin to read


def save_timeline(stats: Stats, path: FilePath) -> None:
    """Save the stages of the latest batches (the last 16 as a picture), one lane per thread and one for the user.

    Args:
        stats: the statistics of a loader.
        path: ``.json`` (for chrome://tracing or ui.perfetto.dev; ``manyhop timeline`` merges files of ranks), or
            ``.svg`` or ``.png`` (need matplotlib).

    Raises:
        InputError: a different suffix, or no batch so far.
        MissingExtraError: a picture without matplotlib.
    """
    path = Path(path)
    if path.suffix not in (".json", ".svg", ".png"):
        raise InputError(f"Expected a file ending in .json, .svg or .png, got '{path.name}'. Choose one of them.")
    intervals = stats.intervals()
    if not intervals:
        raise InputError("Expected some batches to draw, got none. Draw the timeline after the first batches.")
    if path.suffix == ".json":
        save_trace(intervals, _lanes(intervals), path)
    else:
        _draw(_latest(intervals, _DRAWN), path)


def _title(intervals: Sequence[Interval]) -> str:
    first, last = min(i.batch for i in intervals), max(i.batch for i in intervals)
    return (
        f"manyhop, rank {world.current_rank()} on {socket.gethostname()}, batches {first} to {last}. user: the "
        "training loop; other lanes: threads that make batches, and their work on the GPU"
    )


def _lanes(intervals: Sequence[Interval]) -> list[str]:
    """Return the names of the lanes from top to bottom: the user, then the threads in the order of their names."""
    return sorted({i.thread for i in intervals}, key=lambda name: (name != "user", len(name), name))


def _latest(intervals: Sequence[Interval], batches: int) -> list[Interval]:
    """Return the intervals since the user began to wait for the last ``batches`` batches."""
    waits = sorted(i.start for i in intervals if i.stage == "wait")
    begin = waits[-batches] if len(waits) > batches else float("-inf")
    return [i for i in intervals if i.start >= begin]


def _draw(intervals: Sequence[Interval], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "bench", "A timeline as a picture") from None
    lanes = _lanes(intervals)
    begin = min(i.start for i in intervals)
    figure = Figure(figsize=(12, 1.2 + 0.6 * len(lanes)), layout="constrained")
    axes = figure.add_subplot()
    for stage, color in _COLORS.items():
        chosen = [i for i in intervals if i.stage == stage]
        if not chosen:  # otherwise the legend has a different colour
            continue
        axes.barh(
            [lanes.index(i.thread) for i in chosen],
            [(i.end - i.start) * 1e3 for i in chosen],
            left=[(i.start - begin) * 1e3 for i in chosen],
            color=color,
            edgecolor="white",
            linewidth=0.3,
            label=stage,
        )
    axes.set_yticks(range(len(lanes)), lanes)
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.set_title(_title(intervals), fontsize=9)
    figure.legend(loc="outside upper center", ncols=len(_COLORS), frameon=False)
    figure.savefig(path, dpi=120)
