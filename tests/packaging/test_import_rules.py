"""Which package may import what."""

import ast
from graphlib import TopologicalSorter

import import_graph
from import_graph import ADAPTERS, imports, module_of, modules, owner_of_private, parse

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

# Satellites that the core loads by name, when they are needed.
ALIASES = {
    "manyhop": {"manyhop_dgl", "manyhop_pyg"},  # an error that says where loaders are
    "manyhop.lightning": {"manyhop_train"},
    "manyhop.masks": {"manyhop_train"},
    "manyhop.optim": {"manyhop_embedding"},
    "manyhop.sampling.engines": {"manyhop_cugraph"},
}

# Adapters that stand on another one: they name it, and it names them in these files alone, when they are needed.
STAND_ON_DGL = {"manyhop_graphbolt", "manyhop_dgl_cuda"}
SEAMS = {
    "manyhop_dgl.graphbolt": {"manyhop_graphbolt"},  # another name of it
    "manyhop_dgl.compat": {"manyhop_dgl_cuda"},  # what is done to modules of DGL once they are imported
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
    TopologicalSorter(imported_modules()).prepare()  # raises CycleError, which names them


def test_packages_of_the_engine_depend_in_one_direction():
    edges: dict[str, set[str]] = {}
    for name, others in imported_modules().items():
        if package_of(name) not in ADAPTERS:
            edges.setdefault(package_of(name), set()).update({package_of(other) for other in others} - ADAPTERS)
    for package, others in edges.items():
        others.discard(package)
    TopologicalSorter(edges).prepare()
