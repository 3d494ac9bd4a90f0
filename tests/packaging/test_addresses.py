"""Addresses of memory: whoever takes one holds the tensor or array until the address has been used."""

import ast

import pytest
from import_graph import modules

ADDRESSES = {"data_ptr", "ctypes", "__array_interface__", "__cuda_array_interface__"}
SHOW_ARGUMENT = {"untyped_storage", "frombuffer"}
"""Their results are views of what the caller has."""


def faults(source: str) -> list[str]:
    """Return what a source does with addresses that may outlive their memory, with the lines."""
    tree = ast.parse(source)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "from_address":
            found.append(f"{node.lineno}: from_address(), which holds nothing: use manyhop.system.arrays.bytes_of")
        if isinstance(node, ast.Attribute) and node.attr in ADDRESSES and is_temporary(node.value):
            found.append(f"{node.lineno}: the address of a temporary, {ast.unparse(node)}: give it a name first")
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp):
            found += [f"{line}: the address of a temporary, {name}: make a list first" for line, name in of_lazy(node)]
        if isinstance(node, ast.FunctionDef):
            found += [f"{line}: the address of {name} is kept, but not {name}" for line, name in kept_alone(node)]
    return found


def is_temporary(owner: ast.expr) -> bool:
    """Return whether nothing has a name for what an expression gives."""
    while isinstance(owner, ast.Subscript | ast.Attribute):
        owner = owner.value
    if isinstance(owner, ast.Call):
        function = owner.func
        return not (isinstance(function, ast.Attribute) and function.attr in SHOW_ARGUMENT)
    return not isinstance(owner, ast.Name)


def taken(tree: ast.AST) -> list[tuple[int, str]]:
    """Return the lines of addresses, and the names of their owners."""
    return [
        (node.lineno, node.value.id)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ADDRESSES and isinstance(node.value, ast.Name)
    ]


def names(tree: ast.AST) -> set[str]:
    """Return the names in a tree that stand for themselves: not those of which an attribute is read."""
    owners = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in owners}


def of_lazy(comprehension: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> list[tuple[int, str]]:
    """Return the addresses of what an iterator makes and forgets."""
    targets: set[str] = set()
    for each in comprehension.generators:
        makers = (n for n in ast.walk(each.iter) if isinstance(n, ast.GeneratorExp | ast.Call))
        if any(isinstance(n, ast.GeneratorExp) or ast.unparse(n.func) == "map" for n in makers):
            targets |= names(each.target)
    return [(line, name) for line, name in taken(comprehension.elt) if name in targets]


def makes(value: ast.expr | None) -> bool:
    """Return whether an expression gives an object that it makes."""
    if isinstance(value, ast.Tuple):
        return any(map(makes, value.elts))
    if isinstance(value, ast.IfExp):
        return makes(value.body) or makes(value.orelse)
    return isinstance(value, ast.Call | ast.BinOp)


def kept_alone(function: ast.FunctionDef) -> list[tuple[int, str]]:
    """Return addresses that outlive the function, or the turn of a loop, of what it makes there and holds nowhere."""
    held: set[str] = set()
    found: list[tuple[int, str]] = []
    loops = [node for node in ast.walk(function) if isinstance(node, ast.For | ast.While)]
    for scope in (function, *loops):
        assigned = [node for node in ast.walk(scope) if isinstance(node, ast.Assign) and makes(node.value)]
        made = {name for node in assigned for target in node.targets for name in names(target)}
        for node in ast.walk(scope):
            stores = isinstance(node, ast.Return) and scope is function
            if isinstance(node, ast.Assign):
                kinds = ast.Attribute if scope is function else ast.Attribute | ast.Subscript
                stores = any(isinstance(n, kinds) for target in node.targets for n in ast.walk(target))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
                held |= names(node)
                stores = scope is not function
            if stores:
                held |= names(node)
                found += [(line, name) for line, name in taken(node) if name in made]
    return sorted({(line, name) for line, name in found if name not in held})


@pytest.mark.parametrize("name", sorted(modules()))
def test_addresses_do_not_outlive_their_memory(name):
    assert faults(modules()[name].read_text(encoding="utf-8")) == []


WRONG = """\
copy(x.contiguous().data_ptr())
copy(made(x)[2:].data_ptr())
copy(np.ascontiguousarray(x).ctypes.data)
copy((x + 1).data_ptr())
address = x.cpu().__array_interface__['data'][0]
return memoryview((c_ubyte * x.nbytes).from_address(x.data_ptr()))
y = x.contiguous(); return y.data_ptr()
y = x.contiguous(); self.address = y.data_ptr() + 8
for x in xs: y = x.long(); found.append(y.data_ptr())
copy([y.data_ptr() for y in map(dense, xs)])
copy([y.data_ptr() for y, _ in zip((x.long() for x in xs), range(3))])"""
RIGHT = """\
x = x.contiguous(); copy(x.data_ptr(), self.y[0].data_ptr())
same = x.untyped_storage().data_ptr() == self.place
y = x.contiguous(); alive.append(y); return y.data_ptr()
self.y = y = x.long(); self.address = y.data_ptr()
copy([y.data_ptr() for y in [x.long() for x in xs]])"""


def test_what_is_found():
    for lines, count in ((WRONG, 1), (RIGHT, 0)):
        for line in lines.splitlines():
            assert len(faults(f"def f(self, x, xs):\n    {line}")) == count, line
