"""Pages of users are short, and their code fits its column."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if page.parent.name not in ("project", "internals", "api")]
NAMES = [str(page.relative_to(DOCS)) for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_page_has_at_most_190_lines(page):
    assert len(page.read_text().splitlines()) <= 190


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_code_fits_its_column(page):
    blocks = re.findall(r"^```(?:diff|json|py|python|sh|text)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert [line for block in blocks for line in block.splitlines() if len(line) > 76] == []
