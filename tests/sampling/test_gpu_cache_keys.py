"""After an edit, triton compiles every kernel again that the edit concerns, and no other one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import manyhop

SCRIPT = Path(__file__).with_name("gpu_cache_keys.py")
KERNELS = "manyhop.sampling.gpu.kernels"


EDITS = {
    "helper": ("primitives.py", "(j + 1).to(", "(j + 2).to("),
    "constant": ("primitives.py", "KNOWN = tl.constexpr(1 << 30)", "KNOWN = tl.constexpr(1 << 29)"),
    "columns": ("tables.py", "NODES_FULL = tl.constexpr(1)", "NODES_FULL = tl.constexpr(5)"),
}
Functions = dict[str, dict[str, object]]


@pytest.fixture(scope="module")
def functions(tmp_path_factory) -> dict[str, Functions]:
    """The triton functions of the engine before and after an edit of one line: what a key has, calls and reads."""
    tree = tmp_path_factory.mktemp("plugin")
    shutil.copytree(Path(manyhop.__file__).parent, tree / "manyhop", ignore=shutil.ignore_patterns("__pycache__"))
    edits = []
    for file, old, new in EDITS.values():
        path = tree / KERNELS.replace(".", "/") / file
        assert path.read_text().count(old) == 1
        edits.append(json.dumps([str(path), old, new]))
    environment = os.environ | {"PYTHONPATH": str(tree), "TRITON_INTERPRET": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, SCRIPT], env=environment, input="\n".join(edits), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(("before", *EDITS), map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.fixture
def before(functions) -> Functions:
    return functions["before"]


def changed(before, after) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if before[name]["key"] != after[name]["key"]}


def launched(before) -> set[str]:
    """Return the kernels: what no other function calls."""
    return before.keys() - {name for function in before.values() for name in function["calls"]}


@pytest.mark.slow
def test_an_edited_helper_changes_the_keys_of_its_callers(functions, before):
    helper = f"{KERNELS}.primitives.draw"
    callers = {name for name, function in before.items() if helper in function["calls"]}
    assert "manyhop.loading.pipeline.gpu.kernels.look_up" in callers
    assert changed(before, functions["helper"]) == callers | {helper}


@pytest.mark.slow
def test_an_edited_constant_changes_the_keys_of_its_readers(functions, before):
    readers = {f"{KERNELS}.{name}" for name in ("hops.edges.emit", "hops.nodes.finish", "primitives.insert")}
    assert changed(before, functions["constant"]) == readers | {
        name for name, function in before.items() if readers & set(function["calls"])
    }


@pytest.mark.slow
def test_edited_columns_change_the_keys_of_all_kernels_that_read_them(functions, before):
    tables = f"{KERNELS}.tables"
    readers = {name for name in launched(before) if tables in before[name]["reads"]}
    assert len(readers) > 10
    assert readers <= changed(before, functions["columns"])


def test_kernels_read_attributes_of_no_other_module(before):
    assert {module for function in before.values() for module in function["reads"]} == {f"{KERNELS}.tables"}
