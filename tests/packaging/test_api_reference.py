"""The reference has every public name, and each of them is described."""

import re
from pathlib import Path

import pytest

griffe = pytest.importorskip("griffe")

ROOT = Path(__file__).parents[2]
PACKAGES = ("manyhop", "manyhop_pyg", "manyhop_dgl", "manyhop_graphbolt")


@pytest.fixture(scope="module")
def sources():
    loader = griffe.GriffeLoader(search_paths=[ROOT / "plugin", ROOT / "adapters"])
    for path in [*ROOT.glob("plugin/*"), *ROOT.glob("adapters/*")]:
        if (path / "__init__.py").exists():
            loader.load(path.name)
    loader.resolve_aliases(external=True)
    return loader.modules_collection


def pages():
    """Return what the pages of the reference show: name -> the lines of its options."""
    text = "\n".join(page.read_text() for page in sorted(ROOT.glob("docs/reference/*.md")))
    return {name: options for name, options in re.findall(r"^::: (\S+)\n((?: +.*\n)*)", text, flags=re.MULTILINE)}


def test_a_page_shows_every_package_as_a_whole(sources):
    shown = pages()
    assert set(PACKAGES) <= set(shown)
    assert all("members" not in shown[package] for package in PACKAGES)
    assert all(sources[name].docstring for name in shown)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_described(sources, package):
    module = sources[package]
    names = [str(name) for name in module.exports]
    assert names
    found = {name: module[name].final_target if module[name].is_alias else module[name] for name in names}
    missing = {name for name, target in found.items() if not target.docstring}
    assert missing <= {"__version__"}


def test_names_in_the_guides_are_shown():
    text = "\n".join(page.read_text() for page in ROOT.glob("docs/**/*.md"))
    names = set(re.findall(r"\b(manyhop(?:_pyg|_dgl)?(?:\.[a-z_0-9]+)*)\.([A-Z]\w*|[a-z]\w*)(?=[`(])", text))
    shown = {
        page: re.findall(r"\w+", members[1]) if (members := re.search(r"members: \[(.*)\]", options)) else None
        for page, options in pages().items()
    }
    missing = {
        f"{module}.{name}"
        for module, name in names
        if f"{module}.{name}" not in shown
        and (module not in shown or (shown[module] is not None and name not in shown[module]))
    }
    elsewhere = {
        "manyhop.lightning": "manyhop_train",
        "manyhop.masks": "manyhop_train",
        "manyhop.optim": "manyhop_embedding",
    }
    for alias, package in elsewhere.items():
        members = shown[alias.replace("manyhop", package, 1)]
        missing -= {f"{alias}.{name}" for name in members or re.findall(rf"{alias}\.(\w+)", text)}
    assert names
    assert missing == set()
