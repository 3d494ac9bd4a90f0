"""The notebooks: what is committed was executed, and they still run."""

import copy
import functools
import re
import sys
import tempfile
from pathlib import Path

import forks
import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
Config = pytest.importorskip("traitlets.config").Config

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


@functools.cache
def read(path):
    return nbformat.read(path, as_version=4)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_committed_was_executed_in_order(path):
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert all(output.get("name") != "stderr" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)  # there is something to see


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_figures_in_the_text_are_those_of_the_outputs(path):
    cells = read(path).cells
    assert not figures_of_no_output(cells)
    assert "less than a minute" in " ".join(text_of(cells).split())
    assert int(re.search(r"(\d+) s for the whole notebook", printed(cells))[1]) < 60


def figures_of_no_output(cells):
    """Return the figures in the text, code and links left out, that no cell prints."""
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", text_of(cells), flags=re.DOTALL)
    text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
    figures = re.findall(r"(?<![A-Za-z\d])\d+(?:,\d{3})*(?:\.\d+)?", text)
    outputs = printed(cells)
    return [figure for figure in figures if not re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d|\.\d)", outputs)]


def text_of(cells):
    return "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def printed(cells):
    return "\n".join(shown(output) for cell in cells for output in cell.get("outputs", ()))


def shown(output):
    return output.get("text", "") or output.get("data", {}).get("text/plain", "")


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path, monkeypatch):
    """Through sockets with names: ports that are chosen before a kernel starts may be taken until it has."""
    monkeypatch.setenv("NOTEBOOK_EPOCHS", "1")
    monkeypatch.setattr(sys, "executable", forks.python())  # of the kernel
    monkeypatch.setenv("PYTHON_EXEC", forks.python())  # of the ranks that torchrun starts
    notebook = nbformat.from_dict(copy.deepcopy(read(path)))
    for cell in notebook.cells:
        cell.source = cell.source.replace("100_000", "20_000")  # rows that ranks share: fewer show the same
    with tempfile.TemporaryDirectory() as sockets:  # tmp_path is too long for them
        manager = {"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}}
        how = {"timeout": 900, "startup_timeout": 900, "resources": {"metadata": {"path": path.parent}}}
        nbclient.NotebookClient(notebook, config=Config(manager), **how).execute()
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ()))
