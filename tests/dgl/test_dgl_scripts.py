"""Scripts in the shape of DGL's examples, with DGL's classes and with manyhop's."""

import re
import runpy
import subprocess
from pathlib import Path

import forks
import pytest
import torch

import manyhop_dgl

pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")

SCRIPTS = Path(__file__).parent / "scripts"

# What a model says that knows nothing: 0.5, 0.33. DGL's own samples differ from run to run, in spite of
# dgl.seed(): hetero_rgcn reaches 0.89 to 0.99 with them.
EXPECTED = {"link_prediction": 0.65, "hetero_rgcn": 0.8}


@pytest.fixture(autouse=True)
def scripts_run_here(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTS))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def accuracy(text):
    (found,) = re.findall(r"^accuracy ([\d.]+)$", text, flags=re.MULTILINE)
    return float(found)


def in_this_process(path, capsys):
    runpy.run_path(str(path), run_name="__main__")
    return accuracy(capsys.readouterr().out)


@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")
@pytest.mark.parametrize("name", ["link_prediction", "hetero_rgcn"])
def test_the_same_accuracy(name, capsys):
    stock = in_this_process(SCRIPTS / f"{name}.py", capsys)
    manyhop_dgl.install()
    try:
        ours = in_this_process(SCRIPTS / f"{name}.py", capsys)
    finally:
        manyhop_dgl.uninstall()
    assert min(stock, ours) > EXPECTED[name]
    assert abs(stock - ours) < 0.1
    if name == "hetero_rgcn":
        assert in_a_process_of_its_own("-m", "manyhop_dgl", SCRIPTS / f"{name}.py") == ours


def in_a_process_of_its_own(*command):
    done = subprocess.run([forks.python(), *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return accuracy(done.stdout)
