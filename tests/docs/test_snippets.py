"""The code of the documentation runs, and prints what the page shows below it.

Blocks of ``python`` run in order, page by page. Blocks of ``py`` are fragments for GPUs, for multiple processes or for
the reader's data: they are compiled only.
"""

import contextlib
import importlib.util
import io
import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the blocks of a page: language and text."""
    return [(language, textwrap.dedent(text)) for _, language, text in BLOCK.findall(page.read_text())]


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if "python" in dict(blocks(page))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_code_runs(page, tmp_path, monkeypatch):
    if page.parent.name == "dgl" and importlib.util.find_spec("dgl") is None:
        pytest.skip("DGL is not installed")
    monkeypatch.chdir(tmp_path)
    names, printed = {"__name__": "__main__"}, ""
    for language, text in blocks(page):
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(text, str(page), "exec"), names)
            printed = out.getvalue()
        elif language == "text":
            assert printed == text


def test_fragments_are_python():
    fragments = [(page, text) for page in PAGES for language, text in blocks(page) if language == "py"]
    assert len(fragments) > 20
    for page, text in fragments:
        compile(text, str(page), "exec")
