"""Which package may import what."""

import ast
from pathlib import Path

import import_graph
import pytest
from import_graph import ADAPTERS, circles, imports, module_of, modules, owner_of_private, parse

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
    "manyhop": {"manyhop_dgl", "manyhop_pyg"},  # an error that says where loaders are
    "manyhop.lightning": {"manyhop_train"},
    "manyhop.masks": {"manyhop_train"},
    "manyhop.optim": {"manyhop_embedding"},
    "manyhop.sampling.engines": {"manyhop_cugraph"},  # is loaded when it is first used
}

# Adapters that stand on another one: they name it, and it names them in these files alone, when they are needed.
STAND_ON_DGL = {"manyhop_graphbolt", "manyhop_dgl_cuda"}
SEAMS = {
    "manyhop_dgl.graphbolt": {"manyhop_graphbolt"},  # another name of it
    "manyhop_dgl.compat.finder": {"manyhop_dgl_cuda"},  # what is done to modules of DGL once they are imported
    "manyhop_dgl.samplers.blocks": {"manyhop_dgl_cuda"},  # blocks whose edges are torch tensors
}


def package_of(name: str) -> str:
    """Return ``manyhop_pyg`` for its modules, ``manyhop.features`` for those of the engine's package."""
    parts = name.split(".")
    if ".".join(parts[1:3]) in INNER:
        return ".".join(parts[:3])
    return ".".join(parts[: 2 if parts[0] == "manyhop" else 1])


def test_the_core_names_neither_adapters_nor_satellites():
    assert {name: named for name, named in import_graph.adapters_named().items() if named} == ALIASES


def test_adapters_name_each_other_at_seams_alone():
    adapters = {"manyhop_pyg", "manyhop_dgl", *STAND_ON_DGL}
    named: dict[str, set[str]] = {}
    for name, names in imports().items():
        others = ({package_of(dotted) for dotted in names} & adapters) - {package_of(name)}
        if package_of(name) in adapters and others:
            named[name] = others
    below = [name for name in named if package_of(name) in STAND_ON_DGL]
    assert {other for name in below for other in named.pop(name)} == {"manyhop_dgl"}
    assert named == SEAMS


def test_dgl_imports_what_stands_on_it_when_that_is_needed():
    for name in [name for name in modules() if package_of(name) == "manyhop_dgl" and name != "manyhop_dgl.graphbolt"]:
        at_once = [node for node in parse(name).body if isinstance(node, ast.Import | ast.ImportFrom)]
        above = import_graph.imported_names(name, ast.Module(at_once, []))
        assert not [d for d in above if package_of(d) in STAND_ON_DGL or d == "manyhop_dgl.graphbolt"], name


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
