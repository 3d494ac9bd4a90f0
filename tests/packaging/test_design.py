"""The map in docs/project/design.md is that of the tree."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "project" / "design.md").read_text()
PATHS = re.compile(r"(?:[\w.]+/)+(?=\s|$)|(?:[\w.]+/)*\w+\.py\b")
PACKAGES = [p for base in ("plugin", "adapters") for p in (ROOT / base).iterdir() if (p / "__init__.py").exists()]


def named() -> set[Path]:
    """Return what the map names: a line is inside of the folder above it that is indented less."""
    block = re.search(r"^## The map\n\n((?:(?:    .*)?\n)+)", PAGE, flags=re.MULTILINE)[1]
    found, above = set(), []
    for line in filter(None, block.splitlines()):
        indent = len(line) - len(line.lstrip())
        names = PATHS.findall(line)
        if not PATHS.match(line.lstrip()):
            continue  # goes on with what the line before says
        above = [(i, folder) for i, folder in above if i < indent]
        folder = above[-1][1] if above else ROOT
        found |= {folder / name for name in names}
        above.append((indent, folder / names[0]))
    return found


def test_everything_on_the_map_is_there():
    missing = [str(path.relative_to(ROOT)) for path in named() if not path.exists()]
    assert len(named()) > 50
    assert missing == []


def test_every_package_is_on_the_map():
    on_map = named()
    for package in PACKAGES:
        inside = [path.parent for path in package.glob("*/__init__.py")]
        if package.name == "manyhop":
            inside += [path for path in package.glob("*.py") if path.name != "__init__.py"]
        assert [path.name for path in inside if path not in on_map] == []


def test_paths_in_the_text_are_there():
    for name in re.findall(r"`([\w/]+/[\w/.]*)`", PAGE.split("## One batch")[0].split("Dependencies point")[1]):
        assert (ROOT / "plugin" / "manyhop" / name).exists(), name
