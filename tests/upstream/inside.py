"""Run tests or a script of PyG or DGL as ``python`` would, with their classes or ours.

``inside.py PROJECT {plain,swapped} {-m MODULE | SCRIPT} ARGS...`` does what ``python -m manyhop_pyg ...`` does
(``manyhop_dgl``), in a process in which small graphs stand in for datasets; ``plain`` leaves the classes alone.
"""

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import stand_ins

ADAPTERS = {"pyg": ("manyhop_pyg", "PyG"), "dgl": ("manyhop_dgl", "DGL")}


class GraphBoltModules(MetaPathFinder, Loader):
    """``dgl.graphbolt.ANY``, which GraphBolt's tests import from, has the names of ``manyhop_dgl.graphbolt``."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.startswith("dgl.graphbolt.") else None

    def exec_module(self, module: ModuleType) -> None:
        from manyhop_dgl import graphbolt

        vars(module).update({name: getattr(graphbolt, name) for name in graphbolt.__all__})


def swap_dgl() -> None:
    """What ``python -m manyhop_dgl`` does, and GraphBolt's inner modules where GraphBolt is replaced."""
    import manyhop_dgl
    import manyhop_dgl.compat

    manyhop_dgl.install()
    if "dgl.graphbolt" in manyhop_dgl.compat.unavailable():
        sys.meta_path.insert(0, GraphBoltModules())
        for name in ("impl", "internal", "ondisk_dataset"):  # used as attributes
            importlib.import_module(f"dgl.graphbolt.{name}")
        # Decorators of tests ask these about the machine.
        import dgl.graphbolt
        import torch

        dgl.graphbolt.is_wsl = torch.ops.graphbolt.detect_io_uring = lambda: False


def main() -> None:
    project, mode, *what = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the shell ignores it in the background
    package, library = ADAPTERS[project]
    adapter = importlib.import_module(package)  # for DGL this is also what makes `import dgl` work on any torch
    stand_ins.activate_everywhere(project)
    from manyhop.loading import run_as_main

    sys.argv[1:] = what
    sys.path[0] = os.getcwd()
    install = swap_dgl if project == "dgl" else adapter.install
    run_as_main(package, library, install if mode == "swapped" else lambda: None, __file__)


if __name__ == "__main__":
    main()
