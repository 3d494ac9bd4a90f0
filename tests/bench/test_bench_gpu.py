"""The benchmark for GPUs: its tables, its flow (with tiny graphs, without a GPU)."""

import dataclasses
import math
import weakref

import pytest
import torch

from manyhop_bench.cli import main
from manyhop_bench.gpu import command
from manyhop_bench.gpu.command import QUICK, _jobs, run
from manyhop_bench.gpu.job import Job, Missing, Row, Sink, read_results
from manyhop_bench.gpu.plot import as_svg
from manyhop_bench.gpu.record import Run, dump, join, load
from manyhop_bench.gpu.report import as_markdown, as_text
from manyhop_bench.gpu.timing import Ranks

CPU = torch.device("cpu")

TINY = dataclasses.replace(
    QUICK,
    device="cpu",
    num_nodes=1000,
    num_edges=8000,
    fanouts=((3, 2),),
    batch_size=16,
    rounds=2,
    merged=(1, 2),
    sampling_batches=2,
    gather_bytes=1 << 12,
    gather_table=1 << 15,
    row_bytes=(32, 64),
    epoch_batches=3,
    epochs=2,
    num_features=4,
    hidden=(4, 6),
    strong_batches=2,
)


def test_data_in_one_place_is_gone_before_the_next(monkeypatch):
    from manyhop_bench.gpu.loaders import measure

    made, alive = [], []

    def prepare(job, ranks, graph, placement):
        alive.append(sum(data() is not None for data in made))
        data = torch.zeros(3)
        made.append(weakref.ref(data))
        return lambda fanout, seeds: data, 1

    monkeypatch.setattr(measure, "manyhops_data", prepare)
    monkeypatch.setattr(measure, "_load", lambda *rest: iter(()))
    monkeypatch.setattr(measure, "train", lambda *rest: iter(()))
    ((job,), _) = _jobs(TINY, ("manyhop",), ("loader", "epoch"), 1, "/f")
    measure.loaders(job, Ranks(0, 1, CPU), None, None, Sink(job))
    assert alive == [0] * len(job.placements)


def test_jobs_and_rows_survive_json(tmp_path):
    job = dataclasses.replace(TINY, contender="torch", parts=("gather",), results=str(tmp_path / "r"))
    assert Job.from_json(job.to_json()) == job
    sink = Sink(job)
    row = Row(part="gather", workload="device, 64 B", name="torch", seconds=[2.0, 1.0, 9.0], work={"copy": 8.0})
    sink.add(row)
    sink.missing("gather", "no such memory", "pinned")
    Sink(job, silent=True).missing("gather", "of another rank")
    rows, missing = read_results((tmp_path / "r").read_text())
    assert rows == [row]
    assert row.median_s == 2.0
    assert missing == [Missing(name="torch", reason="no such memory", part="gather", workload="pinned")]


@pytest.fixture
def made_up() -> Run:
    def limit(name: str, per_s: float, gpus: int = 1) -> Row:
        return Row(part="limits", workload=name, name="hardware", gpus=gpus, seconds=[1.0], extra={"per_s": per_s})

    def loader(
        name: str,
        gpus: int,
        ms: float,
        part: str = "loader",
        workload: str = "[10, 10]",
        batches: int = 100,
        setting: str = "",
    ) -> Row:
        extra = {"first_s": 0.01, "construct_s": 0.2, "batches": batches, "peak_bytes": 2 << 30, "step_s": 0.001}
        if part == "epoch":
            extra |= {"step_gpu_s": 0.0005, "ratio": 1.0, "ratio_low": 0.98, "ratio_high": 1.05}
        work = {"copy": 1e9, "random reads": 3e6}
        return Row(
            part=part,
            workload=workload,
            setting=setting,
            name=name,
            gpus=gpus,
            seconds=[ms / 1e3],
            edges=1e6,
            work=work,
            extra=extra,
        )

    def sampling(name: str, us: float, edges: float, setting: str) -> Row:
        extra = {"per_call": 1, "peak_bytes": 0, "launch_s": us / 2e6}
        return Row(
            part="sampling",
            workload="[10, 10]",
            name=name,
            setting=setting,
            seconds=[us / 1e6],
            edges=edges,
            work={"random reads": 3 * edges},
            extra=extra,
        )

    strong = "[10, 10], strong"
    return Run(
        title="A & B",
        header=[("GPU", "made up")],
        rows=[
            limit("copy", 2e12),
            limit("random reads", 30e9),
            limit("NVLink", 0.4e12, gpus=2),
            sampling("pylibcugraph", 1000.0, 2e5, "1 per call"),
            sampling("manyhop", 100.0, 1e5, "1 per call"),
            sampling("manyhop", 50.0, 1e5, "16 per call"),
            loader("cuGraph-PyG", 1, 4.0),
            loader("manyhop", 1, 1.0),
            loader("manyhop", 2, 1.25),
            loader("manyhop", 1, 2.4, "epoch", strong, 100, "DDP"),
            loader("manyhop", 1, 2.0, "epoch", strong, 100),
            loader("manyhop", 2, 2.5, "epoch", strong, 50),
        ],
        missing=[Missing(name="PyG", reason="torch-sparse cannot be imported", part="loader", gpus=2)],
    )


def test_tables_of_made_up_figures(made_up):
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in as_text([made_up]).splitlines()]
    assert ["copy", "1", "2000.0 GB/s"] in rows
    assert ["random reads", "1", "30.0 G/s"] in rows
    # 3e5 reads at 30 G/s are 10 us; the peer's 5 ns per edge against 0.5.
    assert ["[10, 10]", "1", "manyhop", "16 per call", "50", "25.0", "100000", "2.00", "10 us (20%)", "0.0 GiB"] in rows
    peer = [
        "[10, 10]",
        "1",
        "pylibcugraph",
        "1 per call",
        "1000",
        "500.0",
        "200000",
        "0.20",
        "20 us (2%)",
        "10.0",
        "0.0 GiB",
    ]
    assert peer in rows
    # 1e9 bytes at 2e12 and 3e6 reads at 30e9: 0.5 ms and 0.1 ms.
    loader = ["4.000", "10.0", "200.0", "100", "1000000", "0.600 ms (15%)", "4.00", "2.0 GiB"]
    assert ["[10, 10]", "1", "cuGraph-PyG", *loader] in rows
    assert ["loader", "[10, 10]", "manyhop", "2", "weak", "0.80"] in rows
    assert ["epoch", "[10, 10], strong", "manyhop", "2", "strong", "0.80", "0.96"] in rows
    epoch = ["0.240", "2.40", "1.00", "0.50", "1.000 (0.980-1.050)", "100", "0.600 ms (25%)", "2.0 GiB"]
    assert ["[10, 10], strong", "1", "manyhop", "DDP", *epoch] in rows
    assert ["PyG, loader, 2 GPUs: torch-sparse cannot be imported"] in rows


def test_a_limit_that_was_not_measured_is_left_open(made_up):
    row = Row(
        part="gather", workload="pinned, 64 B", name="torch", seconds=[1.0], work={"PCIe": 1.0}, extra={"bytes": 1e9}
    )
    run = dataclasses.replace(made_up, rows=[*made_up.rows, row])
    assert run.limit_s(row) is None
    assert run.ratio(row) is None
    assert "| pinned, 64 B | 1 | torch |  | 1.0 |  |  |  |" in as_markdown([run])


def test_records_are_saved_joined_and_drawn(made_up, tmp_path, capsys):
    assert load(dump([made_up])) == [made_up]
    for name in ("a", "b"):
        (tmp_path / name).write_text(dump([dataclasses.replace(made_up, title=f"Run {name}")]))
    saved = [str(tmp_path / name) for name in "ab"]
    assert main(["gpu", "--saved", *saved, "--output", str(tmp_path / "new")]) == 0
    assert "Run a" in capsys.readouterr().out
    markdown, svg = ((tmp_path / "new" / f"gpu.{end}").read_text() for end in ("md", "svg"))
    assert "## Run a" in markdown
    assert "## Run b" in markdown
    assert "](gpu.svg)" in markdown
    assert svg == as_svg(load((tmp_path / "new" / "gpu.json").read_text()))
    assert svg.count("<rect") == 1 + 2 * 2  # the ground, and two bars for each run
    assert "A &amp; B" in as_svg([made_up])


def test_runs_on_the_same_kind_of_gpu_are_joined(made_up):
    """A peer that was measured in another run is compared with manyhop all the same."""
    mine = [row for row in made_up.rows if row.name != "cuGraph-PyG"]
    theirs = [row for row in made_up.rows if row.name in ("cuGraph-PyG", "hardware")]
    versions = ("Versions", "torch 2.11")
    a = dataclasses.replace(made_up, rows=mine, header=[("Command", "a"), ("GPU", "1 x H200; CUDA 13"), versions])
    b = dataclasses.replace(made_up, rows=theirs, header=[("Command", "b"), ("GPU", "4 x H200; CUDA 13"), versions])
    other = dataclasses.replace(b, header=[("Command", "c"), ("GPU", "1 x H100; CUDA 13"), versions])
    both, alone = join([a, b, other])
    assert [value for label, value in both.header if label == "Command"] == ["a", "b"]
    peer = next(row for row in both.rows if row.name == "cuGraph-PyG")
    assert both.ratio(peer) == pytest.approx(4.0)
    assert alone.ratio(peer) is None


@pytest.fixture(scope="module")
def tiny_run() -> Run:
    pytest.importorskip("triton")
    parts = ("sampling", "gather", "loader", "epoch", "build", "stores")
    peers = ("manyhop", "torch", "PyG", "WholeGraph", "cuGraph-PyG")
    return run(TINY, parts, peers, [1], 900, ["--quick"], side_by_side=True)


@pytest.mark.slow
def test_peers_that_are_there_are_measured(tiny_run):
    measured = {(row.part, row.name) for row in tiny_run.rows}
    assert {("limits", "hardware"), ("gather", "torch")} <= measured
    for row in tiny_run.rows:
        rounds = 2 * 20 if row.part == "stores" else 2
        assert len(row.seconds) == (1 if row.name == "PyG" else rounds)
        assert min(row.seconds) > 0
    by_workload = {row.workload: row for row in tiny_run.of("gather") if row.name == "torch"}
    assert set(by_workload) == {"device, 32 B", "device, 64 B", "pinned, 32 B"}
    assert by_workload["device, 64 B"].extra["bytes"] == 1 << 12


def test_manyhop_is_measured_at_everything(tiny_run):
    pytest.importorskip("torch_geometric")
    measured = {(row.part, row.workload, row.setting) for row in tiny_run.rows if row.name == "manyhop"}
    assert measured >= {("sampling", "[3, 2]", f"{size} per call") for size in (1, 2)}
    assert measured >= {("gather", "pinned, 32 B, skewed", setting) for setting in ("", "cache of 10%")}
    epochs = {f"[3, 2], {what}" for what in ("4 hidden, weak", "4 hidden, strong", "6 hidden, weak")}
    for setting in ("", "captured", "DDP"):
        assert {workload for part, workload, how in measured if (part, how) == ("epoch", setting)} == epochs
    assert {how for part, _, how in measured if part == "loader"} == {"", "padded"}
    assert not [line for line in tiny_run.missing if line.name == "manyhop"]


def test_edges_become_batches(tiny_run):
    pytest.importorskip("torch_geometric")
    on_gpu, on_cpu, there = tiny_run.of("build")
    assert (on_gpu.setting, there.setting) == ("on the host, grouped by the GPU", "on the GPU, grouped by it")
    assert on_cpu.setting.startswith("on the host, grouped by the CPU, ")
    assert (on_gpu.workload, on_gpu.edges, on_cpu.edges) == ("8,000 edges, [3, 2]", 8000, 8000)
    assert "From an edge list to the first batch" in as_text([tiny_run])


def test_loaders_of_both_frameworks_read_the_same_rows(tiny_run):
    pytest.importorskip("torch_geometric")
    pytest.importorskip("manyhop_dgl")  # first, so that DGL can be imported
    pytest.importorskip("dgl")
    pyg, dgl = sorted(tiny_run.of("stores"), key=lambda row: row.setting != "device, PyG")
    assert (pyg.setting, dgl.setting) == ("device, PyG", "device, DGL")
    assert pyg.edges > 0
    assert dgl.extra["rows"] == pytest.approx(pyg.extra["rows"], rel=0.3)
    assert 0 < pyg.extra["rows"] <= 16 * (1 + 3 + 3 * 2)
    low, ratio, high = (pyg.extra[name] for name in ("ratio_low", "ratio", "ratio_high"))
    assert min(pyg.seconds) / max(dgl.seconds) / 4 < low <= ratio <= high
    assert pyg.extra["ratio_from"] <= ratio <= pyg.extra["ratio_to"]
    assert all(0 < row.extra["own_low"] <= row.extra["own_high"] for row in (pyg, dgl))
    text = as_text([tiny_run])
    assert "Loaders over the same rows in a store" in text
    assert f"{ratio:.3f} ({low:.3f}-{high:.3f})" in text


def test_contenders_are_at_the_same_work(tiny_run):
    pytest.importorskip("torch_sparse")
    for part in ("loader", "epoch"):
        edges = {row.name: row.edges for row in tiny_run.of(part) if row.workload.startswith("[3, 2]")}
        assert edges["PyG"] == pytest.approx(edges["manyhop"], rel=0.3)
    sampled = {row.setting: row.edges for row in tiny_run.of("sampling")}
    assert sampled["1 per call"] == sampled["2 per call"]  # the very same batches


def test_peers_that_are_not_there_are_missing_from_the_record(tiny_run):
    missing = {(line.name, line.part, line.reason) for line in tiny_run.missing}
    assert {part for name, part, _ in missing if name == "WholeGraph"} == {"sampling", "gather"}
    assert ("WholeGraph", "gather", "pylibwholegraph cannot be imported") in missing
    assert {part for name, part, _ in missing if name == "cuGraph-PyG"} == {"loader", "epoch"}
    assert "cuGraph-PyG, epoch, 1 GPU: cugraph_pyg" in as_text([tiny_run])


def test_pygs_loader_is_measured_as_its_users_see_it(tiny_run):
    pytest.importorskip("torch_geometric")
    pytest.importorskip("torch_sparse")
    loader = next(row for row in tiny_run.of("loader") if row.name == "PyG")
    assert loader.extra["batches"] == 3
    assert 0 < loader.edges <= 16 * (3 + 3 * 2)
    assert loader.work["copy"] == pytest.approx(loader.extra["nodes"] * 4 * 4)
    (epoch,) = (row for row in tiny_run.of("epoch") if row.name == "PyG")
    assert epoch.workload == "[3, 2], 4 hidden, weak"
    assert epoch.extra["batches"] == 3


def test_slowest_rank_counts():
    ranks = Ranks(0, 1, CPU)
    times = iter([0.0, 0.0])
    assert ranks.slowest(3.5) == ranks.mean(3.5) == 3.5
    assert len(ranks.rounds(lambda: next(times, None), 2)) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_one_clear_error(capsys):
    assert main(["gpu", "--quick"]) == 1
    assert "manyhop bench gpu: Expected an NVIDIA GPU that torch can use, found none" in capsys.readouterr().err


def test_numbers_of_gpus_have_to_be_there(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert main(["gpu", "--gpus", "1", "4"]) == 1
    assert "Expected --gpus with numbers from 1 to 2, got [1, 4]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "template", "parts", "gpus", "side_by_side"),
    [
        (["--quick"], command.QUICK, ("sampling", "gather", "loader", "epoch", "build", "stores"), [1, 2], False),
        (["--papers", "--only", "epoch", "--gpus", "2", "--side-by-side"], command.PAPERS, ["epoch"], [2], True),
    ],
)
def test_command_measures_what_it_names(argv, template, parts, gpus, side_by_side, made_up, monkeypatch, capsys):
    asked = []

    def fake_run(*args, side_by_side, budget, progress, keep):
        asked.append((*args, side_by_side, budget))
        progress("something has ended")
        keep(made_up)
        return made_up

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr(command, "run", fake_run)
    assert main(["gpu", *argv]) == 0
    everybody = ["manyhop", "WholeGraph", "pylibcugraph", "torch", "cuGraph-PyG", "PyG"]
    assert asked == [(template, parts, everybody, gpus, 300, argv, side_by_side, math.inf)]
    printed = capsys.readouterr()
    assert printed.out == as_text([made_up])
    assert "something has ended" in printed.err
