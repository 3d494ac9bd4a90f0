"""Run tests or a script of PyG or DGL as ``python`` would, with their classes or ours.

``inside.py PROJECT {plain,swapped,own} {-m MODULE | SCRIPT} ARGS...`` does what ``python -m manyhop_pyg ...`` does
(``manyhop_dgl``), in a process in which small graphs stand in for datasets; ``plain`` leaves the classes alone, and
``own`` does without manyhop.
"""

import importlib
import os
import runpy
import signal
import sys

import graphbolt_modules
import stand_ins

ADAPTERS = {"pyg": ("manyhop_pyg", "PyG"), "dgl": ("manyhop_dgl", "DGL")}


def swap_pyg() -> None:
    """Replace PyG's classes. Loaders print only their names: tests assert this before they look at batches."""
    import manyhop_pyg
    from manyhop.loading.loader import EpochLoader

    manyhop_pyg.install()
    EpochLoader.__repr__ = lambda self: f"{type(self).__name__}()"


def swap_dgl() -> None:
    """What ``python -m manyhop_dgl`` does, and GraphBolt's inner modules where GraphBolt is replaced."""
    import manyhop_dgl
    import manyhop_dgl.compat

    manyhop_dgl.install()
    if "dgl.graphbolt" in manyhop_dgl.compat.unavailable():
        stand_ins.everywhere(graphbolt_modules.provide)


def run_alone(project: str, what: list[str]) -> None:
    """Run in a Python whose torch the library has all its builds for."""
    stand_ins.everywhere(stand_ins.activate, project)
    sys.path[0] = os.getcwd()
    if what[0] == "-m":
        sys.argv[:] = what[1:]
        runpy.run_module(what[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = what
        runpy.run_path(what[0], run_name="__main__")


def main() -> None:
    project, mode, *what = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the shell ignores it in the background
    if mode == "own":
        run_alone(project, what)
        return
    package, library = ADAPTERS[project]
    importlib.import_module(package)  # for DGL this is also what makes `import dgl` work on any torch
    stand_ins.everywhere(stand_ins.activate, project)
    from manyhop.loading import run_as_main

    sys.argv[1:] = what
    sys.path[0] = os.getcwd()
    install = swap_dgl if project == "dgl" else swap_pyg
    run_as_main(package, library, install if mode == "swapped" else lambda: None, __file__)


if __name__ == "__main__":
    main()
