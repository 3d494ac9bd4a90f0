"""The documentation builds, and what it names is there."""

import re
import shlex
from pathlib import Path

import pytest

from manyhop_tools.cli import parser

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
USERS_PAGES = [p for p in ROOT.glob("docs/**/*.md") if p.parent.name not in ("project", "internals", "api")]


def anchors(page):
    """Return the anchors of a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)", text):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        other = page.parent / file if file else page
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), target


def test_lines_have_at_most_120_columns():
    """But for tables, code, and pages that programs write."""
    written = {*ROOT.glob("docs/project/compatibility*.md"), *ROOT.glob("docs/reference/**/*.md")}
    for page in set(PAGES) - written:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        long = [line for line in text.splitlines() if len(line) > 120 and not line.lstrip().startswith("|")]
        assert not long, f"{page.name}: {long[0]}"


@pytest.mark.parametrize("page", USERS_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_of_users_are_short_and_their_code_fits_its_column(page):
    assert len(page.read_text().splitlines()) <= 190
    code = blocks(page, "diff", "json", "py", "python", "sh", "text")
    assert [line for text in code for line in text.splitlines() if len(line) > 76] == []


def test_every_make_target_that_is_named_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"`make (?:\w+=\S+ )*([a-z]+)`", page.read_text())}
    assert named
    assert named <= targets


def blocks(page, *languages):
    """Return the blocks of code of a page that are in one of these languages ("": in none)."""
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [code for language, code in found if language in languages]


def test_command_lines_are_accepted():
    lines = [
        line
        for page in PAGES
        for code in blocks(page, "sh", "")
        for line in code.replace("\\\n", " ").splitlines()
        if line.startswith("manyhop ")
    ]
    assert len(lines) > 30
    for line in lines:
        arguments = shlex.split(line, comments=True)[1:]
        assert parser().parse_args(arguments).verb == arguments[0], line  # exits where it refuses one


def test_every_option_is_in_the_guides():
    text = "\n".join(page.read_text() for page in PAGES)
    verbs = next(action for action in parser()._actions if isinstance(action.choices, dict)).choices
    assert {"bench", "convert", "plan", "doctor", "compile", "timeline"} == set(verbs)
    for verb in verbs:
        for action in verbs[verb]._actions:
            for option in action.option_strings:
                known = option == "--help" or not option.startswith("--") or re.search(rf"{option}(?![\w-])", text)
                assert known, f"manyhop {verb} {option}"


def test_names_that_are_imported_exist():
    pattern = re.compile(r"^ *from (manyhop\S*) import (.+)$", re.MULTILINE)
    code = "\n".join(code for page in PAGES for code in blocks(page, "python", "py"))
    imports = {(module, name.strip()) for module, names in pattern.findall(code) for name in names.split(",")}
    assert len(imports) > 10
    for module, name in sorted(imports):
        exec(f"from {module} import {name}", {})  # a module, too, that nobody has imported before
