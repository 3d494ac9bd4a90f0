"""Prints, as JSON, the keys of all triton functions in triton's cache, and what each reads that a key may lack.

``test_gpu_cache_keys.py`` runs it in processes of their own, with copies of the engine.
"""

import ast
import importlib
import json
import pkgutil
from types import ModuleType

from triton import JITFunction

import manyhop


def modules_with_kernels():
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
    print(json.dumps(report))


if __name__ == "__main__":
    main()
