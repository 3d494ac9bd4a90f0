"""Timelines of ranks in the trace event format of Chrome and Perfetto, and one file of several.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. A process is a rank, a
thread is a lane. Times are microseconds since the first event; ``otherData`` has the wall clock at that event.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from manyhop.errors import InputError
from manyhop.loading.pipeline.stats import Interval
from manyhop.ranks import world

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
    number = {name: tid for tid, name in enumerate(lanes, 1)}  # Perfetto takes thread 0 for the idle one
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
    """Put timelines of several ranks, or loaders, into one file, on the wall clock.

    Ranks of a node share that clock; clocks of nodes differ by what their synchronisation (NTP, PTP) leaves.

    Args:
        paths: files of :func:`save_trace`, or of this function.
        out: the file to write.

    Raises:
        InputError: a file is no timeline, or the file to write is one of them.
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
    lanes: dict[int, int] = {}  # last one of each rank: those of its further loaders come below
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
