"""The benchmark command: its arithmetic, its peers, its tables."""

import dataclasses
import sys
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from manyhop.graph import HOMOGENEOUS_EDGE
from manyhop_bench.cli import main
from manyhop_bench.common import machine
from manyhop_bench.common.graphs import TIME_RANGE, heterogeneous, homogeneous
from manyhop_bench.common.machine import choose_for_pyg, describe, import_peers
from manyhop_bench.common.measure import Absent, Contender, Timing, measure, time_ratio
from manyhop_bench.common.plot import as_svg
from manyhop_bench.common.report import Record, Section, as_markdown, as_text
from manyhop_bench.cpu import command
from manyhop_bench.cpu.command import QUICK, Size, run

TINY = dataclasses.replace(
    QUICK,
    num_nodes=2_000,
    num_edges=20_000,
    sampling_rounds=2,
    min_turn_s=0.0,
    loader_rounds=2,
    loader_batches=2,
    build_edges=20_000,
    build_rounds=2,
    memory=1 << 20,
    batch_size=32,
)


class FakeClock:
    """A clock that only the fake contenders move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def contender(self, name: str, seconds: Callable[[], float], *, threads: int = 1, edges: int = 100) -> Contender:
        def run(num_batches: int) -> int:
            self.now += seconds() * num_batches
            return edges * num_batches

        return Contender(workload="w", name=name, threads=threads, run=run, turn=4)


def test_ratios_are_medians_of_paired_rounds() -> None:
    """A machine that slows down by a factor of 100 between rounds leaves the ratio alone."""
    clock, speed = FakeClock(), iter([1.0] * 2 + [s for s in (1.0, 100.0, 7.0, 0.5, 3.0) for _ in range(2)])
    fast = clock.contender("manyhop", lambda: 0.001 * next(speed))
    slow = clock.contender("peer", lambda: 0.004 * next(speed))
    mine, theirs = measure([fast, slow], 5, 0.0, clock=clock)
    ratio = time_ratio(theirs, mine)
    assert ratio.median == pytest.approx(4.0)
    assert (ratio.low, ratio.high) == pytest.approx((4.0, 4.0))
    assert mine.ms_per_batch == pytest.approx(3.0)
    assert mine.edges_per_s == pytest.approx(100 / 0.003)
    assert len(mine.seconds) == len(theirs.seconds) == 5  # the turn before the rounds does not count


def test_ratios_are_per_sampled_edge() -> None:
    clock = FakeClock()
    mine, theirs = measure(
        [clock.contender("manyhop", lambda: 1.0), clock.contender("peer", lambda: 3.0, edges=200)], 3, 0.0, clock=clock
    )
    assert time_ratio(theirs, mine).median == pytest.approx(1.5)


def test_turns_are_filled_and_a_multiple_of_the_threads() -> None:
    clock, ran = FakeClock(), []

    def batches(num_batches: int) -> int:
        ran.append(num_batches)
        clock.now += 0.01 * num_batches
        return num_batches

    measure([Contender(workload="w", name="manyhop", threads=3, run=batches)], 2, 0.1, clock=clock)
    assert ran[2:] == [12, 12]


def test_another_contender_begins_each_round() -> None:
    clock, order = FakeClock(), []

    def seconds(name: str) -> Callable[[], float]:
        return lambda: order.append(name) or 1.0

    measure([clock.contender(name, seconds(name)) for name in "abc"], 3, 0.0, clock=clock)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"


def test_contenders_are_closed_also_after_a_failure() -> None:
    closed = []

    def fail(num_batches: int) -> int:
        raise RuntimeError("no batch")

    contender = Contender(workload="w", name="manyhop", threads=1, run=fail, close=lambda: closed.append(1))
    with pytest.raises(RuntimeError, match="no batch"):
        measure([contender], 1, 0.0)
    assert closed == [1]


@pytest.fixture
def made_up() -> Record:
    def timing(name: str, threads: int, seconds: list[float], workload: str = "[15, 10, 5]") -> Timing:
        edges = [1e6] * len(seconds)
        return Timing(workload=workload, name=name, threads=threads, seconds=seconds, edges=edges)

    timings = [
        timing("torch-sparse", 1, [0.2, 0.4, 0.2]),
        timing("manyhop", 1, [0.01, 0.02, 0.01]),
        timing("manyhop", 2, [0.005, 0.01, 0.00625]),
        timing("manyhop", 1, [0.015, 0.03, 0.015], "weighted"),
    ]
    return Record(
        title="A & B",
        header=[("CPU", "made up")],
        sections=[Section(title="Sampling alone", timings=timings)],
        absent=[
            Absent(name="DGL", reason="ImportError: no"),
            Absent(name="torch-sparse", workload="weighted", reason="cannot"),
        ],
        base_workload="[15, 10, 5]",
    )


def test_text_table_of_made_up_figures(made_up: Record) -> None:
    text = as_text(made_up)
    rows = [line.split() for line in text.splitlines()]
    assert ["[15,", "10,", "5]", "manyhop", "1", "10.00", "100.00"] in rows
    assert ["[15,", "10,", "5]", "manyhop", "2", "6.25", "160.00", "2.00", "(1.80-2.00)"] in rows
    assert ["[15,", "10,", "5]", "torch-sparse", "1", "200.00", "5.00", "20.00", "(20.00-20.00)"] in rows
    assert ["weighted", "15.0", "1.50", "(1.50-1.50)"] in rows  # nanoseconds per edge, and against the base
    assert ["DGL:", "ImportError:", "no"] in rows
    assert ["torch-sparse", "(weighted):", "cannot"] in rows


def test_markdown_and_plot_hold_all_rows(made_up: Record) -> None:
    markdown, svg = as_markdown(made_up, "cpu.svg"), as_svg(made_up)
    assert "| [15, 10, 5] | torch-sparse | 1 | 200.00 | 5.00 | 20.00 (20.00-20.00) |  |" in markdown
    assert "](cpu.svg)" in markdown
    assert svg.count("<rect") == 1 + 3  # the ground, and a bar for each row of one thread
    assert "A &amp; B" in svg


def test_missing_and_broken_peers_are_reported(tmp_path, monkeypatch) -> None:
    (tmp_path / "broken_peer.py").write_text("raise FileNotFoundError('libbroken.so\\nsecond line')")
    monkeypatch.syspath_prepend(str(tmp_path))
    modules, absent = import_peers({"A": "numpy", "B": "no_such_package", "C": "broken_peer"})
    assert list(modules) == ["A"]
    assert [(peer.name, peer.reason) for peer in absent] == [
        ("B", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("C", "FileNotFoundError: libbroken.so"),
    ]


@pytest.mark.parametrize(
    ("finds", "there", "measured"),
    [
        (True, ["pyg-lib", "torch-sparse"], ["pyg-lib"]),
        (False, ["pyg-lib", "torch-sparse"], ["torch-sparse"]),
        (False, ["torch-sparse"], ["torch-sparse"]),
        (None, ["pyg-lib"], ["pyg-lib"]),
        (False, [], []),
    ],
)
def test_pyg_is_measured_with_the_library_that_it_finds(finds, there, measured, monkeypatch) -> None:
    typing = None if finds is None else SimpleNamespace(WITH_PYG_LIB=finds)  # None: without PyG
    monkeypatch.setitem(sys.modules, "torch_geometric.typing", typing)
    modules = dict.fromkeys([*there, "DGL"], object())
    absent = [Absent(name=name, reason="no such module") for name in ("pyg-lib", "torch-sparse") if name not in there]
    choose_for_pyg(modules, absent)
    assert list(modules) == [*measured, "DGL"]
    assert {peer.name for peer in absent} == {"pyg-lib", "torch-sparse"} - set(measured)
    reasons = {peer.name: peer.reason for peer in absent}
    if "pyg-lib" not in measured:  # the fair peer: how to get it
        assert "pip install pyg-lib -f https://data.pyg.org/whl/torch-" in reasons["pyg-lib"]


def test_the_version_of_a_peer_that_is_installed_by_another_name(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyg_lib", SimpleNamespace(__version__="0.8.0+other"))
    assert "pyg_lib 0.8.0+other" in dict(describe(["cpu"]))["Versions"]


def test_without_pyg_whole_loaders_are_reported_as_missing(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "manyhop_bench.cpu.pyg_loaders", None)
    threads = torch.get_num_threads()
    record = run(TINY, ["10-10"], 1, [])
    torch.set_num_threads(threads)
    assert "Whole loaders for PyG" in {peer.name for peer in record.absent}
    assert "manyhop" in {t.name for t in record.sections[0].timings}
    assert "manyhop" not in {t.name for t in record.sections[1].timings}


def test_both_ends_of_edges_follow_the_power_law() -> None:
    graph = homogeneous(1_000, 200_000, attributes=True)
    colptr, (src, dst) = graph.colptr[HOMOGENEOUS_EDGE], graph.edge_index[HOMOGENEOUS_EDGE]
    share = np.arange(1, 1001) ** -0.6
    expected = share / share.sum() * 200_000
    for ends in (src, dst):
        count = np.sort(np.bincount(ends.numpy(), minlength=1_000))[::-1]
        assert np.abs(count[:50] / expected[:50] - 1).max() < 0.15
        assert np.abs(count[500:].sum() / expected[500:].sum() - 1) < 0.03
    assert torch.equal(torch.bincount(dst, minlength=1_000), torch.diff(colptr))
    hub_in, hub_out = (torch.bincount(ends, minlength=1_000).argmax() for ends in (dst, src))
    assert hub_in == hub_out  # the nodes that are asked most have the most neighbours
    assert graph.time is not None
    assert 0 <= int(graph.time.min()) <= int(graph.time.max()) < TIME_RANGE
    assert bool(((torch.diff(graph.time) >= 0) | (torch.diff(dst) > 0)).all())


def test_heterogeneous_graph_has_three_types_and_all_edges() -> None:
    graph = heterogeneous(1_000, 10_000)
    assert len(graph.num_nodes) == 3
    assert sum(graph.num_nodes.values()) == 1_000
    for (src, _, dst), edge_index in graph.edge_index.items():
        assert int(edge_index[0].max()) < graph.num_nodes[src]
        assert int(edge_index[1].max()) < graph.num_nodes[dst]
    assert sum(e.shape[1] for e in graph.edge_index.values()) == 10_000


@pytest.fixture(scope="module")
def tiny_record() -> Record:
    threads = torch.get_num_threads()
    record = run(TINY, TINY.workloads, 2, ["--quick"])
    torch.set_num_threads(threads)
    return record


@pytest.mark.parametrize("at", [0, 1, 2])
def test_record_has_a_row_for_every_workload_and_thread_count(tiny_record: Record, at: int) -> None:
    if at > 0:
        pytest.importorskip("torch_geometric")
    timings = tiny_record.sections[at].timings
    mine = {(t.workload, t.threads) for t in timings if t.name == "manyhop"}
    workloads = ("[15, 10, 5]", "[10, 10]", "weighted [15, 10, 5]", "disjoint [15, 10]", "temporal [15, 10]")
    workloads += ("3 node types [10, 10]",)
    assert mine == {(workload, threads) for workload in workloads for threads in (1, 2)}
    for timing in timings:
        assert min(timing.edges) > 0
        assert min(timing.seconds) > 0


def test_contenders_sample_equally_many_edges(tiny_record: Record) -> None:
    """Otherwise they would not be at the same work."""
    for section in tiny_record.sections:
        mine = {t.workload: np.mean(t.edges) for t in section.timings if t.name == "manyhop"}
        for timing in section.timings:
            if timing.name not in ("DGL", "GraphBolt"):
                assert np.mean(timing.edges) == pytest.approx(mine[timing.workload], rel=0.3)


def test_record_names_what_is_missing(tiny_record: Record) -> None:
    measured = {t.name.removeprefix("PyG, ") for s in tiny_record.sections for t in s.timings}
    absent = {peer.name for peer in tiny_record.absent if peer.workload is None}
    assert set(machine.PEERS) <= measured | absent
    text = as_text(tiny_record)
    for name in absent:
        assert f"  {name}: " in text


def test_command_saves_table_and_plot(made_up: Record, tmp_path, monkeypatch, capsys) -> None:
    asked: list[tuple[Size, tuple[str, ...], int]] = []

    def fake_run(size: Size, workloads: tuple[str, ...], threads: int, argv: list[str], *, progress) -> Record:
        asked.append((size, tuple(workloads), threads))
        return made_up

    monkeypatch.setattr(command, "run", fake_run)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    argv = ["--quick", "--only", "weighted", "--threads", "4", "--output", str(tmp_path / "new")]
    assert main(["cpu", *argv]) == 0
    assert asked == [(QUICK, ("weighted",), 4)]
    assert (tmp_path / "new" / "cpu-quick.md").read_text() == as_markdown(made_up, "cpu-quick.svg")
    assert (tmp_path / "new" / "cpu-quick.svg").read_text() == as_svg(made_up)
    assert capsys.readouterr().out.startswith(as_text(made_up))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--threads", "0"], "--threads: expected an integer of at least 1, got '0'"),
        (["--large", "--only", "hetero"], "Expected --only 15-10-5 or 10-10 or build with --large, got hetero"),
        (["--only", "nothing"], "invalid choice"),
        (["--quick", "--large"], "not allowed with"),
    ],
)
def test_command_refuses_what_makes_no_sense(argv: list[str], message: str, monkeypatch, capsys) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    with pytest.raises(SystemExit):
        sys.exit(main(["cpu", *argv]))
    assert message in capsys.readouterr().err


def test_building_is_measured_beside_pyg() -> None:
    record = run(TINY, ("build",), 2, [])
    [timings] = [section.timings for section in record.sections if section.timings]
    assert {(t.name, t.threads) for t in timings} == {(name, n) for name in ("manyhop", "PyG") for n in (1, 2)}
    assert all(t.edges == [20_000] * 2 for t in timings)
    assert "Building the topology" in as_text(record)
    assert "edge list" in as_svg(record)
