"""Which package may import what."""

from pathlib import Path

import import_graph
import pytest
from import_graph import ADAPTERS, circles, imports, module_of, modules, owner_of_private

# Rooms inside rooms, which depend on each other in one direction, too.
INNER = (
    "loading.pipeline",
    "memory.placement",
    "memory.stores",
    "ranks.control",
    "ranks.cuda",
    "ranks.world",
    "ranks.watch",
)

# Public names of satellites that users import from the core.
ALIASES = {
    "manyhop.lightning": {"manyhop_train"},
    "manyhop.masks": {"manyhop_train"},
    "manyhop.optim": {"manyhop_embedding"},
}


def package_of(name: str) -> str:
    """Return ``manyhop_pyg`` for its modules, ``manyhop.features`` for those of the engine's package."""
    parts = name.split(".")
    if ".".join(parts[1:3]) in INNER:
        return ".".join(parts[:3])
    return ".".join(parts[: 2 if parts[0] == "manyhop" else 1])


def test_the_core_names_neither_adapters_nor_satellites():
    assert {name: named for name, named in import_graph.adapters_named().items() if named} == ALIASES


def private_imports() -> set[tuple[str, str]]:
    found = set()
    for name, names in imports().items():
        for dotted in names:
            owner = owner_of_private(dotted)
            if owner is None or f"{name}.".startswith(f"{owner}."):
                continue
            # What a module holds is its package's: siblings may use private functions.
            package = owner if modules()[owner].name == "__init__.py" else owner.rpartition(".")[0]
            if not f"{name}.".startswith(f"{package}."):
                found.add((package_of(name), dotted if dotted in modules() else module_of(dotted)))
    return found


def test_nothing_private_crosses_packages():
    assert private_imports() == set()


def imported_modules() -> dict[str, set[str]]:
    found = {name: {module_of(dotted) for dotted in names} - {name} for name, names in imports().items()}
    found["manyhop"] -= set(ALIASES)  # by which it only finds what satellites hold
    return found


def test_no_files_import_each_other():
    """Neither directly nor in turn, neither lazily nor for annotations only."""
    assert circles(imported_modules()) == []


def test_packages_of_the_engine_depend_in_one_direction():
    edges: dict[str, set[str]] = {}
    for name, others in imported_modules().items():
        if package_of(name) not in ADAPTERS:
            edges.setdefault(package_of(name), set()).update({package_of(other) for other in others} - ADAPTERS)
    for package, others in edges.items():
        others.discard(package)
    assert circles(edges) == []


SOURCES = {
    "manyhop": "",
    "manyhop.one": "def work():\n    from manyhop.two import _secret, known\n",
    "manyhop.two": 'from importlib import import_module\nimport_module(f"manyhop.{name}")\nNAMES = {"a": "one"}',
    "manyhop.inner": "from manyhop.inner._hidden import x",
    "manyhop.inner._hidden": '"""Not manyhop_pyg."""\nfrom . import other',
    "manyhop.inner.other": 'import_module("manyhop_pyg")',
    "manyhop_pyg": "if TYPE_CHECKING:\n    from manyhop.inner import _hidden",
}


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """A tree with every kind of import in it, in place of the real one."""
    found = {}
    for name, source in SOURCES.items():
        is_package = any(other.startswith(f"{name}.") for other in SOURCES)
        path = tmp_path / name / ("__init__.py" if is_package else "file.py")
        path.parent.mkdir()
        path.write_text(source)
        found[name] = Path(path)
    monkeypatch.setattr(import_graph, "modules", lambda: found)
    monkeypatch.setattr(import_graph, "ADAPTERS", {"manyhop_pyg"})
    monkeypatch.setitem(globals(), "modules", lambda: found)
    monkeypatch.setitem(globals(), "imports", import_graph.imports.__wrapped__)
    return found


def test_rules_see_all_kinds_of_imports(toy):
    assert imports() == {
        "manyhop": set(),
        "manyhop.one": {"manyhop.two._secret", "manyhop.two.known"},
        "manyhop.two": {"manyhop.one"},
        "manyhop.inner": {"manyhop.inner._hidden.x"},
        "manyhop.inner._hidden": {"manyhop.inner.other"},
        "manyhop.inner.other": set(),
        "manyhop_pyg": {"manyhop.inner._hidden"},
    }
    named = import_graph.adapters_named.__wrapped__()
    assert {name for name, adapters in named.items() if adapters} == {"manyhop.inner.other"}
    assert private_imports() == {("manyhop_pyg", "manyhop.inner._hidden")}
    assert circles(imported_modules()) == [frozenset({"manyhop.one", "manyhop.two"})]


def test_adapters_are_found():
    assert {"manyhop_pyg", "manyhop_dgl"} <= ADAPTERS
