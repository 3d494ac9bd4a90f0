"""Progress bars of files and of copies."""

import itertools
import sys
import threading

import pytest
import torch

from manyhop import files
from manyhop.files.sort import EdgeSorter
from manyhop.graph import HOMOGENEOUS_EDGE as EDGE
from manyhop.graph import HOMOGENEOUS_NODE as NODE
from manyhop.graph import EdgeInput, build_graph, columns, metis
from manyhop.sampling.lookup import EdgeIds
from manyhop.system.progress import Progress, to_device


def test_progress_is_shown_when_asked(tmp_path, capsys):
    rows = files.write(tmp_path / "x.npy", torch.zeros(1000))
    rows.read()
    assert capsys.readouterr().err == ""
    rows.read(progress=True)
    shown = capsys.readouterr().err
    assert "Reading x.npy: 100%" in shown
    assert "3.91k/3.91k" in shown
    files.write(tmp_path / "y.npy", rows, progress=True)
    assert "Writing y.npy: 100%" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("show", "seconds", "shown"), [(None, 0, False), (None, 2, True), (True, 0, True), (False, 2, False)]
)
def test_progress_on_a_terminal_is_shown_after_a_second(show, seconds, shown, monkeypatch, capsys):
    """No thread starts for it."""
    clock, threads = [0.0], set(threading.enumerate())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("tqdm.std.time", lambda: clock[0])
    bar = Progress("Reading", 1000, unit="rows", show=show)
    clock[0] = seconds
    bar.add(400)
    bar.close()
    assert set(threading.enumerate()) <= threads
    error = capsys.readouterr().err
    assert ("400/1.00k" in error, error.endswith("\n")) == (shown, shown)


def test_the_first_rank_of_a_node_shows_progress(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        bar = Progress("Reading", 1000, delay=0)
        bar.add(1000)
        bar.close()
        assert ("Reading: 100%" in capsys.readouterr().err) == (rank == "0")


def test_large_tensors_are_copied_to_a_device_piece_by_piece(monkeypatch, capsys):
    """The device ``meta`` stands for a GPU: the copies take no time."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("tqdm.std.time", itertools.count(step=2.0).__next__)
    tensor = torch.empty((70 << 20) + 1, 4, dtype=torch.uint8)
    there = to_device(tensor, torch.device("meta"), "features")
    assert (there.shape, there.dtype, there.device.type) == (tensor.shape, tensor.dtype, "meta")
    assert "Copying features to meta: 100%" in capsys.readouterr().err
    small = torch.arange(3)
    assert to_device(small, small.device, "features") is small


def test_tables_that_take_long_have_bars(monkeypatch, capsys):
    class Shown(Progress):
        def __init__(self, title, total, **options):
            super().__init__(title, total, show=True)

    monkeypatch.setattr(columns, "Progress", Shown)
    monkeypatch.setattr(columns, "SMALL", 100)
    row, col = 59 - torch.arange(300) % 60, torch.arange(300) % 7
    graph = build_graph({NODE: 60}, {EDGE: EdgeInput(row=row, col=col)})
    assert "Sorting edges: 100%" in capsys.readouterr().err
    EdgeIds(graph.csc[EDGE]).tables()
    assert "Sorting edges: 100%" in capsys.readouterr().err


@pytest.mark.parametrize(("order", "piece", "passes"), [("given", 100, 1), ("mixed", 1000, 2), ("mixed", 100, 3)])
def test_edges_are_counted_in_each_pass_of_sorting_them_into_files(order, piece, passes, tmp_path, capsys):
    """One node has more edges than are sorted at a time."""
    col = torch.cat([torch.zeros(150, dtype=torch.int64), torch.arange(150) * 7 % 60])
    col = col.sort().values if order == "given" else col.flip(0)
    (tmp_path / "scratch").mkdir()
    sorter = EdgeSorter(tmp_path / "scratch", {}, memory=1 << 20)
    sorter.piece = piece
    sorter.add(torch.arange(300) % 60, col, {})
    sorter.write({name: tmp_path / f"{name}.npy" for name in ("colptr", "row", "edge_index")}, 60, 60, progress=True)
    assert f"{300 * passes}/{300 * passes} [" in capsys.readouterr().err
    assert torch.equal(files.open(tmp_path / "edge_index.npy").read()[1], col.sort().values)


def test_many_edges_have_a_bar_while_metis_keeps_the_gil(monkeypatch, capsys):
    pymetis = pytest.importorskip("pymetis", reason="pymetis is not installed: pip install 'manyhop[metis]'")
    part_graph, shown = pymetis.part_graph, []

    def call(*arguments, **options):
        shown.append(capsys.readouterr().err)
        return part_graph(*arguments, **options)

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(metis, "_MANY_EDGES", 200)
    monkeypatch.setattr(pymetis, "part_graph", call)
    ids = torch.arange(300).numpy()
    metis.metis_parts([(ids % 60, ids * 7 % 60)], 300, 60, 2)
    assert "METIS: 100%" in capsys.readouterr().err
    metis.metis_parts([(ids[:100] % 60, ids[:100] * 7 % 60)], 100, 60, 2)
    assert ["METIS" in text for text in shown] == [True, False]
