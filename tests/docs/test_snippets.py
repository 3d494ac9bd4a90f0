"""The code of the documentation runs, and prints what the page shows below it.

Blocks of ``python`` run, one after another, page by page. Blocks of ``py`` are fragments: they need a GPU, several
processes or data of the reader, and are compiled only.
"""

import contextlib
import io
import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md"]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the blocks of a page: language and text."""
    return [(language, textwrap.dedent(text)) for _, language, text in BLOCK.findall(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, printed = {"__name__": "__main__"}, ""
    found = blocks(page)
    assert "python" in [language for language, _ in found]
    for language, text in found:
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(text, str(page), "exec"), names)
            printed = out.getvalue()
        elif language == "text":
            assert printed == text
