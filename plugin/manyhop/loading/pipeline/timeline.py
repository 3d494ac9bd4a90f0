"""Timelines of the latest batches: as a picture, or as traces for Chrome and Perfetto that can be merged."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias
from xml.sax.saxutils import escape

from manyhop.errors import InputError, MissingExtraError
from manyhop.loading.pipeline.stats import Interval, Stage, Stats
from manyhop.ranks import world

# Timelines of ranks in the trace event format of Chrome and Perfetto, and one file of several.
#
# The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. A process is a rank, a
# thread is a lane. Times are microseconds since the first event; ``otherData`` has the wall clock at that event.

FilePath: TypeAlias = str | PathLike[str]
_START = "start_unix_ns"


def save_trace(intervals: Sequence[Interval], lanes: Sequence[str], path: FilePath) -> None:
    """Save the intervals of this rank.

    Args:
        intervals: at least one.
        lanes: names of the threads, from top to bottom.
        path: the file.
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


# A picture of the last batches: who did what, when.
#
# The SVG is written without matplotlib: it needs no extra, and pointing at a bar shows its batch, stage and time.

_COLORS: dict[Stage, str] = {
    "sample": "#2b6cb0",
    "gather": "#2f855a",
    "assemble": "#b7791f",
    "compile": "#6b46c1",
    "wait": "#e53e3e",
    "step": "#a0aec0",
}
_IN_PNG = 16  # batches: more would be too thin to read
_WIDTH, _LEFT, _LANE, _TOP = 1800, 110, 34, 84


def save_timeline(stats: Stats, path: str | PathLike[str]) -> None:
    """Draw the stages of the latest batches (of the last 16 as ``.png``), one lane per thread and one for the user.

    Args:
        stats: the statistics of a loader.
        path: ``.svg``, ``.png`` (needs matplotlib) or ``.json`` (for chrome://tracing or ui.perfetto.dev; ``manyhop
            timeline`` merges files of ranks).

    Raises:
        InputError: a different suffix, or no batch so far.
        MissingExtraError: ``.png`` without matplotlib.
    """
    path = Path(path)
    writers = {".svg": _svg, ".json": lambda found, to: save_trace(found, _lanes(found), to), ".png": _png}
    if path.suffix not in writers:
        raise InputError(f"Expected a file ending in {', '.join(writers)}, got '{path.name}'. Choose one of them.")
    intervals = stats.intervals()
    if not intervals:
        raise InputError("Expected some batches to draw, got none. Draw the timeline after the first batches.")
    writers[path.suffix](intervals, path)


def _title(intervals: Sequence[Interval]) -> str:
    first, last = min(i.batch for i in intervals), max(i.batch for i in intervals)
    return (
        f"manyhop, rank {world.current_rank()} on {socket.gethostname()}, batches {first} to {last}. user: the "
        "training loop; other lanes: threads that make batches, and their work on the GPU"
    )


def _lanes(intervals: Sequence[Interval]) -> list[str]:
    """Return the names of the lanes from top to bottom: the user, then the threads in the order of their names."""
    return sorted({i.thread for i in intervals}, key=lambda name: (name != "user", len(name), name))


def _svg(intervals: Sequence[Interval], path: Path) -> None:
    lanes = _lanes(intervals)
    begin, end = min(i.start for i in intervals), max(i.end for i in intervals)
    scale = (_WIDTH - _LEFT - 20) / max(end - begin, 1e-9)
    height = _TOP + len(lanes) * _LANE + 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="14">{escape(_title(intervals))}</text>',
    ]
    for k, (stage, color) in enumerate(_COLORS.items()):
        x = _LEFT + 100.0 * k
        out.append(f'<rect x="{x}" y="36" width="14" height="14" fill="{color}"/>')
        out.append(f'<text x="{x + 20}" y="48">{stage}</text>')
    for lane, name in enumerate(lanes):
        y = _TOP + lane * _LANE
        out.append(f'<text x="{_LEFT - 8}" y="{y + 18}" text-anchor="end">{escape(name)}</text>')
        out.append(f'<line x1="{_LEFT}" y1="{y + 28}" x2="{_WIDTH - 20}" y2="{y + 28}" stroke="#e2e8f0"/>')
    bottom = _TOP + len(lanes) * _LANE
    for t in _ticks(end - begin):
        x = _LEFT + t * scale
        out.append(f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{bottom}" stroke="#e2e8f0"/>')
        out.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{t * 1e3:.6g} ms</text>')
    for i in intervals:
        x, y = _LEFT + (i.start - begin) * scale, _TOP + lanes.index(i.thread) * _LANE
        width = max((i.end - i.start) * scale, 0.5)
        label = f"batch {i.batch}, {i.stage}: {(i.end - i.start) * 1e3:.3f} ms"
        out.append(
            f'<rect x="{x:.2f}" y="{y + 2}" width="{width:.2f}" height="24" fill="{_COLORS[i.stage]}" '
            f'stroke="white" stroke-width="0.4"><title>{label}</title></rect>'
        )
        if width > 8 * len(str(i.batch)) + 6:
            out.append(f'<text x="{x + width / 2:.1f}" y="{y + 18}" text-anchor="middle" fill="white">{i.batch}</text>')
    out.append("</svg>")
    path.write_text("\n".join(out) + "\n", encoding="utf-8")


def _ticks(span: float) -> list[float]:
    """Return about eight round times between 0 and ``span`` seconds."""
    step = 1e-6
    while span / step > 10:
        for factor in (2, 2.5, 2):
            step *= factor
            if span / step <= 10:
                break
    return [k * step for k in range(int(span / step) + 1)]


def _latest(intervals: Sequence[Interval], batches: int) -> list[Interval]:
    """Return the intervals since the user began to wait for the last ``batches`` batches."""
    waits = sorted(i.start for i in intervals if i.stage == "wait")
    begin = waits[-batches] if len(waits) > batches else float("-inf")
    return [i for i in intervals if i.start >= begin]


def _png(intervals: Sequence[Interval], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "bench", "A timeline as .png") from None
    intervals = _latest(intervals, _IN_PNG)
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
