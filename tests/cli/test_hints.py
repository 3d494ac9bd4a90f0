"""Commands that install an extra work for the way in which manyhop was installed."""

import json
import re
import subprocess
import venv
from pathlib import Path

import pytest

from manyhop.errors import MissingExtraError
from manyhop.hints import command_for, pip_install
from manyhop.system import triton_compiler

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file:///a%20b/c", "dir_info": {"editable": True}}, "pip install -e '/a b/c[pyg]'"),
        ({"url": "file:///a/c", "dir_info": {}}, "pip install '/a/c[pyg]'"),
        (
            {"url": "https://x/y.git", "vcs_info": {"vcs": "git", "commit_id": "12"}},
            "pip install 'manyhop[pyg] @ git+https://x/y.git'",
        ),
        (
            {"url": "https://x/y.git", "vcs_info": {"vcs": "git", "requested_revision": "v1", "commit_id": "12"}},
            "pip install 'manyhop[pyg] @ git+https://x/y.git@v1'",
        ),
        ({"url": "file:///m.whl", "archive_info": {}}, "pip install 'manyhop[pyg] @ file:///m.whl'"),
        (None, "pip install 'manyhop[pyg]'"),
    ],
)
def test_commands(origin, command, tmp_path):
    assert command_for("pyg", origin, tmp_path) == command


def test_a_clone_on_the_path_that_is_not_installed():
    assert command_for("pyg,cu13", None, ROOT) == f"pip install -e '{ROOT}[pyg,cu13]'"


def test_errors_name_the_command():
    assert str(MissingExtraError("dgl", "dgl", "This")).endswith(f"Install it with: {pip_install('dgl')}")


def test_the_metadata_is_read(tmp_path):
    venv.create(tmp_path / "venv", with_pip=False)
    site = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    info = site / "manyhop-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: manyhop\nVersion: 0\n")
    (info / "direct_url.json").write_text(json.dumps({"url": ROOT.as_uri(), "dir_info": {"editable": True}}))
    code = f"import sys; sys.path.append({str(ROOT / 'plugin')!r})\n"
    code += "from manyhop.hints import pip_install; print(pip_install('pyg'))"
    python = tmp_path / "venv" / "bin" / "python"
    run = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == f"pip install -e '{ROOT}[pyg]'"


def test_no_hint_names_manyhop_as_if_it_were_on_an_index():
    """Anybody may take that name there."""
    pattern = re.compile(r"pip install[^\n]{0,20}['\"]?manyhop(\[|\b)(?!.{0,30}@)")
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.ipynb")]
    texts += [p for d in ("plugin", "adapters", "examples") for p in (ROOT / d).glob("**/*.py") if p.name != "hints.py"]
    assert [str(p) for p in texts if pattern.search(p.read_text())] == []


@pytest.mark.parametrize(("version", "usable"), [(None, False), ((3, 4), False), ((3, 5), True), ((4, 0), True)])
def test_triton(monkeypatch, version, usable):
    monkeypatch.setattr(triton_compiler, "_version", lambda: version)
    assert triton_compiler.usable() == usable
    if usable:
        triton_compiler.require("Sampling on a GPU")
    else:
        with pytest.raises(MissingExtraError, match=r"^Sampling on a GPU needs the package 'triton', ") as error:
            triton_compiler.require("Sampling on a GPU")
        assert ("version 3.5 or later, but 3.4 is installed" in str(error.value)) == (version is not None)
