"""Puts stand-ins in the places of datasets, in this process and in those that ``multiprocessing`` starts from it."""

import importlib
import multiprocessing.spawn
from collections.abc import Callable


def activate(project: str) -> None:
    """Put them where scripts of PyG ("pyg") or DGL ("dgl") look for datasets."""
    importlib.import_module("stand_ins_ogb").activate()
    importlib.import_module(f"stand_ins_{project}").activate()


def activate_everywhere(project: str) -> None:
    activate(project)
    before = multiprocessing.spawn.get_preparation_data

    def data(name: str) -> dict[str, object]:
        return before(name) | {__name__: _ActivateWhenUnpickled(project)}

    multiprocessing.spawn.get_preparation_data = data


class _ActivateWhenUnpickled:
    """What a new process gets first of all; it finds this module by PYTHONPATH."""

    def __init__(self, project: str) -> None:
        self._project = project

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return activate, (self._project,)
