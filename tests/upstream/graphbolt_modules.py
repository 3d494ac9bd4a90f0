"""GraphBolt's inner modules, which its tests import from, where ``manyhop_dgl.graphbolt`` takes GraphBolt's place."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class GraphBoltModules(MetaPathFinder, Loader):
    """``dgl.graphbolt.ANY`` has the names of ``manyhop_dgl.graphbolt``."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.startswith("dgl.graphbolt.") else None

    def exec_module(self, module: ModuleType) -> None:
        from manyhop_dgl import graphbolt

        vars(module).update({name: getattr(graphbolt, name) for name in graphbolt.__all__})


def provide() -> None:
    """Let them be found in this process; `manyhop_dgl.install()` was called."""
    sys.meta_path.insert(0, GraphBoltModules())
    for name in ("impl", "internal", "ondisk_dataset"):  # used as attributes
        importlib.import_module(f"dgl.graphbolt.{name}")
    # Decorators of tests ask these about the machine.
    import dgl.graphbolt
    import torch

    dgl.graphbolt.is_wsl = torch.ops.graphbolt.detect_io_uring = lambda: False
