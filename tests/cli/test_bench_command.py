"""``manyhop bench``."""

from importlib.metadata import EntryPoint, EntryPoints

import pytest
import torch

import manyhop_dgl  # noqa: F401  # makes dgl importable
from manyhop import files
from manyhop.hints import pip_install

SMALL = ["--batch-size", "50", "--batches", "2", "--fanout", "3", "2", "--rounds", "2"]


@pytest.fixture
def peers(monkeypatch):
    """Offer other entry points than those of the installation."""

    def offer(**values):
        points = EntryPoints(EntryPoint(name, value, "manyhop.peers") for name, value in values.items())
        monkeypatch.setattr("manyhop_tools.cli.bench.entry_points", lambda **which: points.select(**which))

    return offer


def rows(text):
    """Return the cells of the table by framework and loader."""
    lines = [line.split() for line in text.split("Not measured")[0].splitlines()]
    return {(cells[0], cells[2]): cells[3:] for cells in lines if cells[1:2] == ["cpu"]}


@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity opt", "ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("typed", [False, True])
def test_loaders_of_a_folder(typed, run):
    pytest.importorskip("dgl")
    draw = torch.Generator().manual_seed(0)
    pair = tuple(torch.randint(0, 200, (2, 3000), generator=draw))
    types, edges = ("_N", "_N"), {("_N", "_E", "_N"): pair}
    if typed:
        types, edges = ("a", "b"), {("a", "to", "b"): pair, ("b", "to", "a"): pair}
    x = {name: {"x": torch.rand(200, 4)} for name in types}
    files.save_graph("g", dict.fromkeys(types, 200), edges, node_tensors=x, homogeneous=not typed)
    found = rows(run("bench", "g", *SMALL).out)
    assert {("pyg", "manyhop"), ("dgl", "manyhop"), ("dgl", "DGL")} <= found.keys()
    assert all(float(ms) > 0 and float(speed) > 0 for ms, speed, *_ in found.values())
    assert len(found["dgl", "DGL"]) == 4
    assert len(found["dgl", "manyhop"]) == 2


def alone(folder, **options):
    return {"manyhop": lambda: (2, 100), "Peer": "not installed"}


def test_manyhop_alone_says_so_first(peers, run):
    peers(one="test_bench_command:alone", two="no_such_module:epochs")
    out = run("bench", "--nodes", "200", "--edges", "9e2", "--features", "2", *SMALL).out
    assert out.startswith("No peer is installed: manyhop is measured alone.\n200 nodes, 900 edges; ")
    assert ("one", "manyhop") in rows(out)
    assert f"  Peer: not installed\n  two: No module named 'no_such_module': {pip_install('two')}\n" in out


def test_an_installation_without_entry_points_names_the_command_that_mends_it(peers, run):
    peers()
    error = run("bench", "--nodes", "200", fails="Expected installed entry points of the group 'manyhop.peers'").err
    assert pip_install("pyg") in error
