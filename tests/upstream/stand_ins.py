"""Puts stand-ins in the places of datasets, in this process and in those that ``multiprocessing`` starts from it."""

import importlib
import multiprocessing.spawn
from collections.abc import Callable


def activate(project: str) -> None:
    """Put them where scripts of PyG ("pyg") or DGL ("dgl") look for datasets."""
    importlib.import_module("stand_ins_ogb").activate()
    importlib.import_module(f"stand_ins_{project}").activate()


def everywhere(function: Callable[..., None], *arguments: str) -> None:
    """Call a function, which a module has, in this process and first of all in those that it starts.

    New processes call such functions in the order in which they were named here, and find modules by PYTHONPATH.
    """
    function(*arguments)
    before = multiprocessing.spawn.get_preparation_data

    def data(name: str) -> dict[str, object]:
        return before(name) | {function.__module__: _CallWhenUnpickled(function, arguments)}

    multiprocessing.spawn.get_preparation_data = data


class _CallWhenUnpickled:
    def __init__(self, function: Callable[..., None], arguments: tuple[str, ...]) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str, ...]]:
        return self._call
