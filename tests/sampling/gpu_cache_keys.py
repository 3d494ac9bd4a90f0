"""Prints, as JSON, the keys of all triton functions in triton's cache, and what each reads that a key may lack.

For the engine as it is, and after each edit that a line of the input describes: ``[path, old, new]``. Each time in a
process of its own, in which torch and triton are imported already. ``test_gpu_cache_keys.py`` runs it on a copy.
"""

import ast
import importlib
import json
import os
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

import torch  # noqa: F401
from triton import JITFunction


def modules_with_kernels():
    import manyhop

    for found in pkgutil.walk_packages(manyhop.__path__, "manyhop."):
        if "kernels" in found.name:
            module = importlib.import_module(found.name)
            if any(isinstance(value, JITFunction) for value in vars(module).values()):
                yield module


def uses(function):
    """Return the triton functions that a function calls, and the modules whose constants it reads as attributes."""
    called, read = set(), set()
    names = function.fn.__globals__
    for node in ast.walk(function.parse()):
        if isinstance(node, ast.Name) and isinstance(names.get(node.id), JITFunction):
            called.add(names[node.id])
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = names.get(node.value.id)
            if isinstance(module, ModuleType) and module.__name__.startswith("manyhop"):
                value = getattr(module, node.attr)
                if isinstance(value, JITFunction):
                    called.add(value)
                else:
                    read.add(module.__name__)
    return called, read


def name_of(function):
    return f"{function.fn.__module__}.{function.fn.__name__}"


def main():
    functions = {}
    for module in modules_with_kernels():
        for value in vars(module).values():
            if isinstance(value, JITFunction):
                functions[name_of(value)] = value
    direct = {name: uses(function) for name, function in functions.items()}
    report = {}
    for name, function in functions.items():
        reached, todo = set(), [name]
        while todo:
            one = todo.pop()
            if one not in reached:
                reached.add(one)
                todo += map(name_of, direct[one][0])
        report[name] = {
            "key": function.cache_key,
            "calls": sorted(reached - {name}),
            "reads": sorted(set().union(*(direct[one][1] for one in reached))),
        }
    print(json.dumps(report), flush=True)


def in_a_child(function):
    if os.fork() == 0:
        function()
        os._exit(0)
    _, status = os.wait()
    assert status == 0


if __name__ == "__main__":
    in_a_child(main)
    for line in sys.stdin:
        name, old, new = json.loads(line)
        path, source = Path(name), Path(name).read_text()
        path.write_text(source.replace(old, new))
        in_a_child(main)
        path.write_text(source)
