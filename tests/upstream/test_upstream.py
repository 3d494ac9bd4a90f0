"""The gate, on checkouts of a few lines."""

import importlib.util
from pathlib import Path

import execute
import pytest
import run
import suites
from report import Expected, better, unexpected

HERE = Path(__file__).parent
# In place of inside.py, which imports a library: what is run finds the mode in `builtins`.
INSIDE = """
import builtins, runpy, sys
builtins.SWAPPED = sys.argv[2] == "swapped"
sys.argv = sys.argv[3:]
if sys.argv[0] == "-m":
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
TESTS = """
import pytest
def test_good(): pass
def test_bad_in_any_case(): assert False
@pytest.mark.parametrize("n", range(3))
def test_bad_when_swapped(n): assert not (SWAPPED and n)
def test_skipped(): pytest.skip()
"""
LOADER = "from torch_geometric.loader import NeighborLoader\n"
SCRIPTS = {
    "good.py": "if __name__ == '__main__': print('NeighborLoader')",
    "bad.py": "NeighborLoader = None if SWAPPED else 1\nNeighborLoader + 1",
    "helper.py": "class NeighborLoader: pass",
    "other.py": "raise SystemExit('uses nothing that is swapped')",
    "multi_gpu/several.py": "NeighborLoader",
}
KNOWN = """
[[expected]]
reason = "Known for long"
[expected.failures]
"pyg/test/loader/test_some.py::test_bad_when_swapped" = {}
"pyg/examples/bad.py" = 1
"""


@pytest.fixture
def gate(tmp_path, monkeypatch):
    """Run the gate on a checkout, with so many failures of a test known; returns its status and its page."""
    inside = tmp_path / "inside.py"
    inside.write_text(INSIDE)
    monkeypatch.setattr(execute, "INSIDE", inside)
    checkout = tmp_path / "checkout"
    (checkout / "test" / "loader").mkdir(parents=True)
    (checkout / "test" / "loader" / "test_some.py").write_text(TESTS)
    for name, text in SCRIPTS.items():
        file = checkout / "examples" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    keep = tmp_path / "keep"

    def go(known, *arguments):
        (tmp_path / "expected.toml").write_text(KNOWN.format(known))
        options = ["--expected", tmp_path / "expected.toml", "--output", tmp_path / "page.md", "--keep", keep]
        status = run.main([str(word) for word in ["--pyg", checkout, *options, *arguments]])
        return status, (tmp_path / "page.md").read_text()

    go.checkout = checkout
    return go


def test_what_is_run_what_differs_and_what_is_known(gate, capsys):
    status, page = gate(2)
    assert status == 0
    assert "| `test/loader/test_some.py` | 2 passed, 3 failed, 1 skipped | 4 passed, 1 failed, 1 skipped |" in page
    assert "| `examples/good.py` | runs | runs |" in page
    assert "| `examples/bad.py` | fails: TypeError: unsupported operand" in page
    assert "| `examples/multi_gpu/several.py` | not run: needs several GPUs |" in page
    assert "helper.py" not in page
    assert "other.py" not in page
    assert "- Known for long: `test_some.py test_bad_when_swapped` (2), `bad.py`" in page
    assert "WORSE" not in capsys.readouterr().out

    status, page = gate(1)  # what is kept is not run again; one failure more than known
    assert status == 1
    assert "- Unexpected: `test_some.py test_bad_when_swapped` (2)" in page
    assert "WORSE than expected: pyg/test/loader/test_some.py::test_bad_when_swapped: 2 failed, 1 known" in (
        capsys.readouterr().out
    )

    assert gate(3)[0] == 0
    assert "better than expected: pyg/test/loader/test_some.py::test_bad_when_swapped: 2 failed, 3 known" in (
        capsys.readouterr().out
    )


def test_scripts_on_gpus_get_their_devices(gate, monkeypatch):
    how = {"pyg/examples/good.py": "--n {gpus} --gpu {devices}", "pyg/examples/bad.py": "", "pyg/no.py": ""}
    monkeypatch.setattr(suites, "ON_GPUS", how)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    (job,) = suites.jobs_on_gpus("pyg", gate.checkout, 2)
    assert job.arguments == ("--n", "2", "--gpu", "0,1")
    status, page = gate(2, "--gpus", "1", "2")
    assert status == 0
    assert "| `examples/good.py`, 1 GPU | runs | has no CUDA |" in page
    assert "| `examples/good.py`, 2 GPUs | runs | has no CUDA |" in page
    assert "a GPU; 3 files, 0 of them not run" in page
    assert execute.of_script(1, "Found no NVIDIA driver", gpus=1).outcomes == {execute.SCRIPT: "failed"}


TESTS_OF_GRAPHSTORM = """
import os, pytest
@pytest.mark.parametrize("n", [1, 2])
def test_of_its_own_process(n): assert "TAKEN" not in os.environ; os.environ["TAKEN"] = "1"
def test_wrong(): assert False, "wrong"
def test_on_gpus(): raise RuntimeError("Distributed package doesn't have NCCL built in")
def test_of_a_package(): import no_such_package
"""


def test_tests_of_graphstorm_have_a_process_each(tmp_path, monkeypatch):
    (tmp_path / "inside.py").write_text(INSIDE)
    monkeypatch.setattr(execute, "INSIDE", tmp_path / "inside.py")
    (tmp_path / "test_some.py").write_text(TESTS_OF_GRAPHSTORM)
    result = execute.execute(suites.Job("graphstorm", tmp_path, "1", "test_some.py", tests=True), "plain", 60, None)
    assert result.outcomes == {
        "test_of_its_own_process[1]": "passed",
        "test_of_its_own_process[2]": "passed",
        "test_wrong": "failed",
        "test_on_gpus": "not run",
        "test_of_a_package": "not run",
    }
    assert result.messages == {"test_wrong": "AssertionError: wrong assert False"}
    assert result.note == "some need the package no_such_package"


@pytest.mark.parametrize(
    ("text", "outcome", "note"),
    [("print('no epoch')", "failed", ""), ("print('Epoch: 01'); print('Epoch: 02')", "passed", "in epoch 2")],
)
def test_a_script_beyond_its_time_ran_if_an_epoch_ended(tmp_path, monkeypatch, text, outcome, note):
    (tmp_path / "inside.py").write_text(INSIDE)
    monkeypatch.setattr(execute, "INSIDE", tmp_path / "inside.py")
    monkeypatch.setattr(execute, "GRACE", 1.0)
    (tmp_path / "endless.py").write_text(f"{text}\nwhile True: pass")
    job = suites.Job("pyg", tmp_path, "1", "endless.py", tests=False)
    result = execute.execute(job, "swapped", limit=0.6, keep=None)
    assert result.outcomes == {execute.SCRIPT: outcome}
    assert note in result.note


@pytest.mark.parametrize(
    ("output", "outcome", "note"),
    [
        ("RuntimeError: Found no NVIDIA driver on your system.", "not run", "needs a GPU"),
        ("ModuleNotFoundError: No module named 'no_such.part'", "not run", "needs the package no_such"),
        ("ModuleNotFoundError: No module named 'torch.no_such'", "failed", ""),
        ("requests.exceptions.ConnectionError: HTTPSConnectionPool", "not run", "needs the network"),
    ],
)
def test_what_is_missing_is_not_a_failure(output, outcome, note):
    result = execute.of_script(1, output)
    assert (result.outcomes, result.note) == ({execute.SCRIPT: outcome}, note)


def test_cells_of_notebooks_are_a_script(tmp_path):
    cells = '{"cell_type": "code", "source": ["%pip install dgl\\n", "x = 1"]}, {"cell_type": "markdown", "source": []}'
    (tmp_path / "book.ipynb").write_text('{"cells": [%s]}' % cells)  # noqa: UP031
    (tmp_path / "out").mkdir()
    assert execute.as_script(tmp_path / "book.ipynb", tmp_path / "out").read_text() == "\nx = 1"


def test_expectations_name_a_reason_and_files_that_the_suites_know():
    expected = Expected.read(HERE / "expected.toml")
    assert all(reason.strip() for reason in expected.reasons.values())
    assert all(name.partition("/")[0] in suites.TITLES and count > 0 for name, count in expected.counts.items())
    assert unexpected([], expected) == better([], expected) == []


SCRIPT = {
    "pyg": """
from torch_geometric.datasets import Planetoid
from torch_geometric.loader import NeighborLoader
print(NeighborLoader.__module__, Planetoid('x', 'Cora')[0].num_nodes)
""",
    "dgl": """
import dgl.graphbolt as gb
from dgl.graphbolt.impl.ondisk_dataset import OnDiskDataset
from ogb.nodeproppred import DglNodePropPredDataset
classes = gb.BuiltinDataset('ogbn-mag').load().tasks[0].metadata['num_classes']
print(OnDiskDataset.__module__, DglNodePropPredDataset('ogbn-products').num_classes == classes)
""",
    "dgl, spawned": """
import torch.multiprocessing as mp
from dgl.dataloading import DataLoader
from ogb.nodeproppred import DglNodePropPredDataset
def run(rank, graph):
    print(DataLoader.__module__, DglNodePropPredDataset('ogbn-products')[0][0].num_nodes() == graph.num_nodes())
if __name__ == '__main__':
    mp.spawn(run, args=(DglNodePropPredDataset('ogbn-products')[0][0],), nprocs=1)
""",
}
SHOWN = {
    "pyg": "manyhop_pyg.loaders.node 600",
    "dgl": "manyhop_graphbolt.datasets.dataset True",
    "dgl, spawned": "manyhop_dgl.loader.loader True",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", SCRIPT)
def test_scripts_find_stand_ins_and_manyhop(tmp_path, what):
    project = what[:3]
    if importlib.util.find_spec({"pyg": "torch_geometric", "dgl": "dgl"}[project]) is None:
        pytest.skip("the library is not installed")
    (tmp_path / "script.py").write_text(SCRIPT[what])
    job = suites.Job(project, tmp_path, "1", "script.py", tests=False)
    result = execute.execute(job, "swapped", limit=300, keep=tmp_path)
    output = (tmp_path / f"1_{project}_script.py.swapped.txt").read_text()
    assert result.outcomes == {execute.SCRIPT: "passed"}, output
    assert output.splitlines()[-1] == SHOWN[what]
