"""DGL's own GraphBolt and ``dgl.sparse`` beside manyhop's: the same programs, in two interpreters, return the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import stand_ins_graphbolt

HERE = Path(__file__).parent
PYTHON = Path(os.environ.get("MANYHOP_GRAPHBOLT", HERE.parents[1] / ".venv-graphbolt/bin/python"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PYTHON.exists(),
        reason=f"no DGL with its own GraphBolt at {PYTHON}: run `make graphbolt` (5 GB, torch 2.2.1), or name its "
        "Python by MANYHOP_GRAPHBOLT",
    ),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The result of each program, of DGL's own GraphBolt and of manyhop's."""
    found = {}
    for name, python in {"dgl": str(PYTHON), "manyhop": sys.executable}.items():
        folder = tmp_path_factory.mktemp(name)  # each preprocesses the datasets
        stand_ins_graphbolt.write(folder / "datasets", ("cora", "ogbl-citation2", "ogbn-mag"))
        environment = os.environ | {"DGLBACKEND": "pytorch", "OMP_NUM_THREADS": "1"}
        command = [python, str(HERE / "graphbolt_programs.py"), name, str(folder)]
        subprocess.run(command, check=True, env=environment, cwd=folder, timeout=300)
        found[name] = json.loads((folder / f"{name}.json").read_text())
    return found


def test_every_program_returns_what_it_returns_with_graphbolt(results):
    dgl, manyhop = results["dgl"], results["manyhop"]
    assert len(dgl) > 200
    assert "raises an error" not in dgl.values()
    assert [name for name, result in dgl.items() if manyhop[name] != result] == []
