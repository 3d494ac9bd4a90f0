"""The reference has every public name, and each of them is described."""

import re
from pathlib import Path

import pytest

griffe = pytest.importorskip("griffe")

ROOT = Path(__file__).parents[2]
SPLIT = ("manyhop.features", "manyhop.sampling")
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
    """Return what the pages of the reference show: name -> its members (``None``: all), over all pages."""
    shown: dict[str, set[str] | None] = {}
    for page in ROOT.glob("docs/reference/api/*.md"):
        for name, options in re.findall(r"^::: (\S+)\n((?: +.*\n)*)", page.read_text(), flags=re.MULTILINE):
            members = re.search(r"members: \[(.*)\]", options)
            known = shown.get(name, set())
            shown[name] = known | set(re.findall(r"\w+", members[1])) if members and known is not None else None
    return shown


def test_the_pages_show_every_public_name(sources):
    shown = pages()
    for name, members in shown.items():
        assert sources[name].docstring
        exports = {str(export) for export in sources[name].exports or ()}
        assert members is None or members <= set(sources[name].members), name
        assert members is None or name not in {*PACKAGES, *SPLIT} or members >= exports - {"__version__"}, name
    assert {*PACKAGES, *SPLIT} <= set(shown)


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
    shown = pages()
    missing = {
        f"{module}.{name}"
        for module, name in names
        if f"{module}.{name}" not in shown
        and (module not in shown or (shown[module] is not None and name not in shown[module]))
    }
    missing -= {"manyhop_dgl.graphbolt"}  # is shown as manyhop_graphbolt
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
