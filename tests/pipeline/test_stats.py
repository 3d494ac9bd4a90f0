"""Statistics, their advice, and the timeline."""

import json
import pickle
import sys
import threading
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from manyhop.errors import InputError, MissingExtraError
from manyhop.pipeline import Pipeline, Stats, save_timeline
from manyhop.pipeline.stats import advise
from manyhop.pipeline.timeline import _latest

STEP = "your step is the bottleneck: the loader hides behind it"


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
    ("said", "expected"),
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
            "fewer hops or smaller fan-outs",
        ),
        (
            advice(1, 100, waited=40, step=10, workers=2, cores=2),
            "gathering is the bottleneck (99% of making a batch) and all 2 cores are in use: "
            "a smaller feature dtype (float16, bfloat16), or fewer attributes",
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
def test_advice(said: str, expected: str) -> None:
    assert said == expected


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
    assert r.edges_per_s == pytest.approx(1_000_000 / 1.037)
    assert r.seeds_per_s == pytest.approx(10_240 / 1.037)
    assert r.advice.startswith("sampling is the bottleneck (67% of making a batch)")
    text = str(r)
    assert "sampling         0.020      2.00" in text
    assert text.splitlines()[0] == ("10 batches, num_workers=1: 9.87 k seeds/s, 964 k edges/s, 10.5 MB of features")
    assert text.splitlines()[-1] == f"advice: {r.advice}"


def test_an_empty_report() -> None:
    r = Stats().report()
    assert (r.batches, r.seeds_per_s, r.edges_per_s) == (0, 0.0, 0.0)
    assert "too few batches" in str(r)


def test_reset_and_copies_begin_empty() -> None:
    stats = made_up()
    assert pickle.loads(pickle.dumps(stats)).report().batches == 0
    stats.reset()
    assert stats.report() == Stats(1).report()
    assert stats.intervals() == []


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


def test_recording_a_batch_costs_microseconds() -> None:
    stats = Stats()

    def once() -> float:
        began = time.perf_counter()
        for b in range(200):
            for stage in ("sample", "gather", "assemble"):
                with stats.stage(b, stage):
                    pass
            stats.count(seeds=1, edges=2, nodes=3, gathered_bytes=4)
            stats.waited(b, 0.0, 1.0)
            stats.stepped(b, 0.0, 1.0)
        return (time.perf_counter() - began) / 200

    assert min(once() for _ in range(10)) < 50e-6  # about 8 on a quiet machine


def test_svg(tmp_path: Path) -> None:
    save_timeline(made_up(), tmp_path / "t.svg")
    root = ET.parse(tmp_path / "t.svg").getroot()
    titles = [t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 40
    assert "batch 3, sample: 2.000 ms" in titles
    texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"user", "manyhop-0", "sample", "wait", "step"} <= set(texts)


def test_trace(tmp_path: Path) -> None:
    save_timeline(made_up(), str(tmp_path / "t.json"))
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == ["user", "manyhop-0"]
    sample = next(e for e in events if e["name"] == "sample" and e["args"]["batch"] == 3)
    assert sample["tid"] == 1
    assert sample["dur"] == pytest.approx(2000)


def test_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    save_timeline(made_up(), tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_a_png_shows_the_last_batches() -> None:
    stats = made_up()
    latest = _latest(stats.intervals(), 3)
    assert sorted(i.batch for i in latest if i.stage == "wait") == sorted({i.batch for i in stats.intervals()})[-3:]
    assert _latest(stats.intervals(), 100) == list(stats.intervals())


def test_png_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match="matplotlib"):
        save_timeline(made_up(), tmp_path / "t.png")


@pytest.mark.parametrize("name", ["t.pdf", "t", "t.svg.gz"])
def test_other_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"\.svg, \.json, \.png"):
        save_timeline(made_up(), tmp_path / name)


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none"):
        save_timeline(Stats(), tmp_path / "t.svg")


def test_a_timeline_of_a_real_run(tmp_path: Path) -> None:
    stats = Stats(2)

    def make(batch: int, item: int) -> int:
        for stage in ("sample", "gather", "assemble"):
            with stats.stage(batch, stage):
                time.sleep(0.001)
        return item

    for _ in Pipeline(range(20), make, num_workers=2, stats=stats):
        time.sleep(0.001)
    assert {i.thread for i in stats.intervals()} == {"user", "manyhop-0", "manyhop-1"}
    save_timeline(stats, tmp_path / "t.svg")
    ET.parse(tmp_path / "t.svg")
