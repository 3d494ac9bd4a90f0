"""The site builds without warnings, and every page is in its navigation and its sitemap."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS) for page in DOCS.rglob("*.md") if "internals" not in page.parts)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("zensical", reason="zensical is not installed")
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    env = os.environ | {"MKDOCS_REFERENCE": "false", "MKDOCS_SITE_URL": "https://docs.test/"}
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    run = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return folder / "site"


def test_every_page_is_in_the_navigation():
    named = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    assert sorted(named) == [str(page) for page in PAGES]


def test_every_page_is_built_and_in_the_sitemap(site):
    addresses = re.findall(r"<loc>(.+)</loc>", (site / "sitemap.xml").read_text())
    paths = {"" if str(page) == "index.md" else f"{page.with_suffix('')}/" for page in PAGES}
    assert {f"https://docs.test/{path}" for path in paths} <= set(addresses)
    assert all((site / path / "index.html").exists() for path in paths)
    assert not (site / "internals").exists()
