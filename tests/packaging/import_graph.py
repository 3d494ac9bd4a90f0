"""Read what the files of plugin/ and adapters/ import, without importing them.

Counts imports inside functions and under ``TYPE_CHECKING``, and modules that a string names: ``import_module("a.b")``,
``f"a.b.{name}"``, the values of a table of names. A package's own ``__init__`` counts where a name is taken from it.
"""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
# All packages beside the core: adapters and satellites.
ADAPTERS = {
    path.name
    for folder in ("plugin", "adapters")
    for path in (ROOT / folder).iterdir()
    if (path / "__init__.py").exists() and path.name != "manyhop"
}
_NAMES_AN_ADAPTER = re.compile(r"\bmanyhop_[a-z_]+")
_DOTTED = re.compile(r"\w+(\.\w+)+\.?")


@cache
def modules() -> dict[str, Path]:
    """Return the files of all packages by dotted name."""
    found = {}
    for base in (ROOT / "plugin", ROOT / "adapters"):
        for path in base.rglob("*.py"):
            parts = path.relative_to(base).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def parse(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text())


def _docstrings(tree: ast.Module) -> set[int]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }


def strings(tree: ast.Module) -> set[str]:
    """Return the string constants of a file, without its docstrings."""
    docstrings = _docstrings(tree)
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    }


def imported_names(name: str, tree: ast.Module) -> set[str]:
    """Return the dotted names that a file takes from packages: ``from a.b import c`` gives ``a.b.c``."""
    package = name if modules()[name].name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    texts = strings(tree)
    # f"{package}.{name}": every string of the file may be the name.
    prefixes = {text for text in texts if text.endswith(".") and text[:-1] in modules()}
    found.update(text for text in texts if text in modules() and "." in text)
    found.update(prefix + text for prefix in prefixes for text in texts if prefix + text in modules())
    return {dotted for dotted in found if dotted.partition(".")[0] in {"manyhop", *ADAPTERS}}


def module_of(dotted: str) -> str:
    """Return the module that a dotted name is, or is taken from."""
    while dotted not in modules():
        dotted = dotted.rpartition(".")[0]
    return dotted


@cache
def imports() -> dict[str, set[str]]:
    """Return the dotted names that each module imports."""
    return {name: imported_names(name, parse(name)) for name in modules()}


@cache
def adapters_named() -> dict[str, set[str]]:
    """Return the adapters that each file of the engine names: in imports and in strings other than docstrings."""
    found = {}
    for name in modules():
        if name.partition(".")[0] == "manyhop":
            tree = parse(name)
            texts = " ".join(strings(tree) | imported_names(name, tree))
            found[name] = set(_NAMES_AN_ADAPTER.findall(texts)) & ADAPTERS
    return found


def owner_of_private(dotted: str) -> str | None:
    """Return the package that the first private part of a dotted name belongs to, or None if no part is private."""
    parts = dotted.split(".")
    for i, part in enumerate(parts):
        if part.startswith("_") and not part.startswith("__"):
            return ".".join(parts[:i])
    return None
