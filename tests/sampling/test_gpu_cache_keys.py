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


def functions(tree: Path) -> dict[str, dict[str, object]]:
    """Return the triton functions of an engine: their keys, what they call, the modules whose attributes they read."""
    environment = os.environ | {"PYTHONPATH": str(tree), "TRITON_INTERPRET": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    tree = tmp_path_factory.mktemp("plugin")
    shutil.copytree(Path(manyhop.__file__).parent, tree / "manyhop", ignore=shutil.ignore_patterns("__pycache__"))
    return tree


@pytest.fixture(scope="module")
def before(tree):
    return functions(tree)


def edited(tree: Path, module: str, old: str, new: str) -> dict[str, dict[str, object]]:
    """Return the functions as they are with one line of a module edited."""
    path = (tree / module.replace(".", "/")).with_suffix(".py")
    source = path.read_text()
    assert source.count(old) == 1
    assert old.count("\n") == new.count("\n")  # line numbers are in the keys
    try:
        path.write_text(source.replace(old, new))
        return functions(tree)
    finally:
        path.write_text(source)


def changed(before, after) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if before[name]["key"] != after[name]["key"]}


def launched(functions) -> set[str]:
    """Return the kernels: what no other function calls."""
    return functions.keys() - {name for function in functions.values() for name in function["calls"]}


def test_an_edited_helper_changes_the_keys_of_its_callers(tree, before):
    helper = f"{KERNELS}.primitives.random.draw"
    after = edited(tree, f"{KERNELS}.primitives.random", "(j + 1).to(", "(j + 2).to(")
    callers = {name for name, function in before.items() if helper in function["calls"]}
    assert "manyhop.pipeline.gpu.kernels.positions.look_up" in callers
    assert changed(before, after) == callers | {helper}


def test_an_edited_constant_changes_the_keys_of_its_readers(tree, before):
    after = edited(tree, f"{KERNELS}.primitives.hash", "KNOWN = tl.constexpr(1 << 30)", "KNOWN = tl.constexpr(1 << 29)")
    readers = {f"{KERNELS}.{name}" for name in ("hops.emit.emit", "hops.finish.finish", "primitives.hash.insert")}
    assert changed(before, after) == readers | {
        name for name, function in before.items() if readers & set(function["calls"])
    }


def test_edited_columns_change_the_keys_of_all_kernels_that_read_them(tree, before):
    tables = f"{KERNELS}.tables"
    after = edited(tree, tables, "NODES_FULL = tl.constexpr(1)", "NODES_FULL = tl.constexpr(5)")
    readers = {name for name in launched(before) if tables in before[name]["reads"]}
    assert len(readers) > 10
    assert readers <= changed(before, after)


def test_kernels_read_attributes_of_no_other_module(before):
    assert {module for function in before.values() for module in function["reads"]} == {f"{KERNELS}.tables"}
