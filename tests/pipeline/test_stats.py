"""Statistics, their advice, and the timeline."""

import dataclasses
import json
import pickle
import re
import sys
import threading
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from manyhop.errors import InputError, MissingExtraError
from manyhop.loading.pipeline import Stats, merge_traces, save_timeline
from manyhop.loading.pipeline.stats import advise
from manyhop.loading.pipeline.timeline import _latest, _title
from manyhop.system import kernel_progress
from manyhop.system.kernel_progress import Compilation
from manyhop_tools.cli import main

STEP = "Training is the bottleneck: loading is fully overlapped"


def advice(
    sample: float = 0.0,
    gather: float = 0.0,
    assemble: float = 0.0,
    *,
    waited: float,
    step: float,
    workers: int = 0,
    cores: int = 8,
    batches: int = 100,
) -> str:
    making = {"sampling": sample, "gathering": gather, "assembling": assemble}
    return advise(batches=batches, making=making, waited=waited, step=step, num_workers=workers, cores=cores)


@pytest.mark.parametrize(
    ("advice", "expected"),
    [
        (advice(9, waited=9, step=3), "sampling is the bottleneck (100% of making a batch): num_workers=4"),
        (advice(6, 3, waited=9, step=3), "sampling is the bottleneck (67% of making a batch): num_workers=4"),
        (
            advice(2, 6, 2, waited=3, step=7, workers=1),
            "gathering is the bottleneck (60% of making a batch): num_workers=2",
        ),
        (advice(100, waited=100, step=1), "sampling is the bottleneck (100% of making a batch): num_workers=8"),
        (advice(9, waited=9, step=0, cores=2), "sampling is the bottleneck (100% of making a batch): num_workers=2"),
        (advice(9, waited=0.1, step=10, workers=2), STEP),
        (advice(1, waited=0.4, step=10), STEP),
        (advice(1, waited=1, step=9), "your step takes 90% of the time: num_workers=1 hides the rest behind it"),
        (
            advice(100, waited=40, step=10, workers=8),
            "sampling is the bottleneck (100% of making a batch) and all 8 cores are in use: "
            "more cores or a GPU; else fewer hops or smaller fanouts",
        ),
        (
            advice(1, 100, waited=40, step=10, workers=2, cores=2),
            "gathering is the bottleneck (99% of making a batch) and all 2 cores are in use: "
            "more cores or a GPU; else fewer attributes, or a smaller feature dtype (float16, bfloat16)",
        ),
        (
            advice(1, 1, 100, waited=40, step=100, workers=4),
            "assembling is the bottleneck (98% of making a batch) although num_workers=4 should do: "
            "other programs may use the cores; else a cheaper transform",
        ),
        (advice(waited=9, step=1), "90% of the time is waiting: use num_workers=2"),
        (advice(9, waited=9, step=1, batches=1), "too few batches to judge"),
    ],
)
def test_advice(advice: str, expected: str) -> None:
    assert advice == expected


def made_up() -> Stats:
    """Ten batches, each: 2 ms sampling, 1 ms gathering in a thread; the user waits 3 ms (the first time 1 s) and steps
    1 ms."""
    stats = Stats(num_workers=1)

    def work() -> None:
        for b in range(10):
            stats.record(b, "sample", b * 4e-3, b * 4e-3 + 2e-3)
            stats.record(b, "gather", b * 4e-3 + 2e-3, b * 4e-3 + 3e-3)
            stats.count(seeds=1024, edges=100_000, nodes=70_000, gathered_bytes=1 << 20)

    thread = threading.Thread(target=work, name="manyhop-0")
    thread.start()
    thread.join()
    for b in range(10):
        stats.waited(b, b * 4e-3 - (0.997 if b == 0 else 0), b * 4e-3 + 3e-3)
        stats.stepped(b, b * 4e-3 + 3e-3, b * 4e-3 + 4e-3)
    return stats


def test_report() -> None:
    r = made_up().report()
    assert (r.batches, r.seeds, r.edges, r.nodes, r.gathered_bytes) == (10, 10_240, 1_000_000, 700_000, 10 << 20)
    assert r.sample_s == pytest.approx(0.02)
    assert r.gather_s == pytest.approx(0.01)
    assert r.assemble_s == 0
    assert r.waited_s == pytest.approx(1.027)
    assert r.first_wait_s == pytest.approx(1.0)
    assert r.step_s == pytest.approx(0.01)
    assert r.edges_per_s == pytest.approx(1_000_000 / 0.037)
    assert r.seeds_per_s == pytest.approx(10_240 / 0.037)
    assert r.advice.startswith("sampling is the bottleneck (67% of making a batch)")
    text = str(r)
    assert "sampling         0.020      2.00" in text
    assert text.splitlines()[0] == ("10 batches, num_workers=1: 277 k seeds/s, 27 M edges/s, 10.5 MB of features")
    assert "waited for       0.027      2.70\nyour step        0.010      1.00\nonce: first batch 1 s\n" in text
    assert text.splitlines()[-1] == f"advice: {r.advice}"
    assert "seeds/s, 0 edges/s, 10.5 MB of features\n" in str(dataclasses.replace(r, edges_per_s=0))


def test_a_report_since_an_earlier_one() -> None:
    stats = made_up()
    earlier = stats.report()
    assert stats.report(earlier).batches == 0
    stats.count(seeds=100, other_rows=10, cached_rows=5)
    stats.record(10, "sample", 1.0, 1.5)
    stats.waited(10, 1.0, 1.5)
    stats.stepped(10, 1.5, 2.0)
    r = stats.report(earlier)
    assert (r.batches, r.seeds, r.edges, r.sample_s, r.waited_s, r.step_s) == (1, 100, 0, 0.5, 0.5, 0.5)
    assert (r.seeds_per_s, r.cache_hit_rate, r.first_wait_s) == (100, 0.5, 0)
    assert str(r).startswith("1 batch, num_workers=1: ")
    assert stats.report().batches == 11
    with pytest.raises(InputError, match="of another"):
        Stats().report(earlier)
    with pytest.raises(InputError, match="of another"):  # although it could be one of this loader
        stats.report(Stats().report())


def test_compilation_is_no_part_of_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a thread, and of the GPU for it, waits for the same kernel."""
    found = [Compilation("manyhop-1", 10.0, 11.0), Compilation("manyhop-0", 12.0, 16.0)]
    monkeypatch.setattr(kernel_progress, "compilations", found)
    stats = Stats()
    stats.record(0, "sample", 10.0, 12.0, "manyhop-0")
    before = stats.report()
    assert (before.sample_s, before.compile_s) == (2.0, 0.0)
    assert "compiling" not in str(before)
    stats.record(0, "assemble", 11.0, 17.0, "manyhop-0")
    stats.record(0, "gather", 13.0, 18.0, "GPU of manyhop-0", times=3)
    stats.record(1, "sample", 11.0, 17.0, "manyhop-2")
    report = stats.report(before)
    assert (report.sample_s, report.gather_s, report.assemble_s, report.compile_s) == (6.0, 6.0, 2.0, 4.0)
    assert "once: compiling 4 s" in str(report)
    stages, compiled = stats.intervals()[:4], stats.intervals()[4:]
    assert [interval.end - interval.start for interval in stages] == [2.0, 6.0, 5.0, 6.0]
    assert compiled == [(0, "compile", "manyhop-0", 12.0, 16.0)]


def test_metrics_are_floats_by_stable_names() -> None:
    assert set(made_up().report().metrics("")) == {
        "batches", "seeds", "edges", "nodes", "gathered_bytes", "exchanged_bytes", "cache_hit_rate", "seeds_per_s",
        "edges_per_s", "sample_s", "gather_s", "assemble_s", "compile_s", "waited_s", "first_wait_s", "step_s",
        "num_workers",
    }  # fmt: skip
    stats = made_up()
    stats.count(padded=4, fit=3)
    metrics = stats.report().metrics()
    assert metrics["manyhop/pad_fit_rate"] == 0.75
    assert metrics["manyhop/batches"] == 10
    assert {type(value) for value in metrics.values()} == {float}


def test_an_empty_report(tmp_path: Path) -> None:
    r = Stats().report()
    assert (r.batches, r.seeds_per_s, r.edges_per_s) == (0, 0.0, 0.0)
    assert str(r) == "no batches yet, num_workers=0"
    with pytest.raises(InputError, match="none"):
        save_timeline(Stats(), tmp_path / "t.svg")


def test_copies_begin_empty() -> None:
    copied = pickle.loads(pickle.dumps(made_up()))
    assert copied.report() == Stats(1).report()
    assert copied.intervals() == []


def test_an_unknown_stage() -> None:
    with pytest.raises(InputError, match="'smaple'"):
        Stats().record(0, "smaple", 0.0, 1.0)  # type: ignore[arg-type]


def test_the_last_batches_are_kept_and_no_more() -> None:
    stats = Stats()
    for b in range(1000):
        stats.waited(b, b, b + 0.5)
    kept = stats.intervals()
    assert 64 <= len(kept) <= 400
    assert kept[-1].batch == 999


def test_threads_lose_no_counts() -> None:
    stats = Stats(4)

    def work() -> None:
        for b in range(2000):
            stats.record(b, "sample", 0.0, 1.0)
            stats.count(seeds=1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert stats.report().sample_s == stats.report().seeds == 8000


def check_trace(path: Path) -> list[dict[str, Any]]:
    """Return the events of a file in the trace event format: complete events, and names of processes and threads."""
    trace = json.loads(path.read_text())
    assert trace["displayTimeUnit"] in ("ms", "ns")
    assert isinstance(trace["otherData"], dict)
    open_until: dict[tuple[int, int], float] = {}
    for event in sorted(trace["traceEvents"], key=lambda e: e.get("ts", -1)):
        assert isinstance(event["pid"], int)
        assert event["tid"] > 0
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
            continue
        assert event["ph"] == "X"
        assert event["name"] in ("sample", "gather", "assemble", "wait", "step")
        assert event["dur"] >= 0
        lane = event["pid"], event["tid"]
        assert event["ts"] >= open_until.get(lane, 0) - 0.01  # those of a lane do not overlap
        open_until[lane] = event["ts"] + event["dur"]
    return trace["traceEvents"]


def names(events: list[dict[str, Any]]) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def test_trace(tmp_path: Path) -> None:
    save_timeline(made_up(), str(tmp_path / "t.json"))
    events = check_trace(tmp_path / "t.json")
    assert names(events) == {(0, 1): "user", (0, 2): "manyhop-0"}
    sample = next(e for e in events if e["name"] == "sample" and e["args"]["batch"] == 3)
    assert sample["tid"] == 2
    assert sample["dur"] == pytest.approx(2000)


def test_traces_of_ranks_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    for rank, loader in ((1, "train"), (0, "train"), (0, "val")):
        monkeypatch.setenv("RANK", str(rank))
        stats, now = Stats(), time.perf_counter()
        start = now + 1000 * rank
        stats.record(0, "sample", start, start + 0.5)
        files.append(tmp_path / f"{loader}{rank}.json")
        save_timeline(stats, files[-1])
    assert main(["timeline", *map(str, files), "-o", str(tmp_path / "all.json")]) == 0
    merged = tmp_path / "all.json"
    events = check_trace(merged)
    lane = threading.current_thread().name
    assert names(events) == {(0, 1): lane, (0, 2): f"{lane} (val0)", (1, 1): lane}
    assert {e["args"]["name"].split(" on ")[0] for e in events if e["name"] == "process_name"} == {"rank 0", "rank 1"}
    first, second, of_rank_1 = sorted((e["ts"], e["pid"]) for e in events if e["ph"] == "X")
    assert (first, second[1], of_rank_1[1]) == ((0.0, 0), 0, 1)
    assert 0 <= second[0] < of_rank_1[0] <= 1000e6  # rank 1 was saved first
    before = merged.read_bytes()
    with pytest.raises(InputError, match=r"a new file.*all\.json.*Name another"):  # as "*.json" names it the next time
        merge_traces([*files, merged], merged)
    assert merged.read_bytes() == before


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"traceEvents": [], "otherData": {}}'])
def test_what_is_no_trace(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(InputError, match=r"loader\.timeline"):
        merge_traces([tmp_path / "t.json"], tmp_path / "all.json")
    assert not (tmp_path / "all.json").exists()


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    save_timeline(made_up(), tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    save_timeline(made_up(), tmp_path / "t.svg")
    assert ET.parse(tmp_path / "t.svg").getroot().tag.endswith("svg")
    title = r"manyhop, rank 0 on .+, batches 0 to 9\. user: the training loop; other lanes: threads"
    assert re.match(title, _title(made_up().intervals()))


def test_pictures_show_the_last_batches() -> None:
    stats = made_up()
    latest = _latest(stats.intervals(), 3)
    assert sorted(i.batch for i in latest if i.stage == "wait") == sorted({i.batch for i in stats.intervals()})[-3:]
    assert _latest(stats.intervals(), 100) == list(stats.intervals())


def test_pictures_need_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match="matplotlib"):
        save_timeline(made_up(), tmp_path / "t.png")


@pytest.mark.parametrize("name", ["t.pdf", "t", "t.svg.gz"])
def test_other_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"\.json, \.svg or \.png"):
        save_timeline(made_up(), tmp_path / name)
