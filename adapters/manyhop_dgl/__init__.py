"""manyhop for DGL: its samplers, DataLoader and GraphBolt, fast and reproducible, by changing one import.

Importing this package makes ``import dgl`` work on a current torch (``manyhop_dgl.compat``). What needs DGL itself is
imported when it is asked for: the rest works where DGL is not installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from manyhop.errors import MissingExtraError
from manyhop_dgl import compat

if TYPE_CHECKING:
    from manyhop_dgl._graph import Graph

# Public name -> the module that has it.
_MODULES = {
    "Graph": "_graph",
}

__all__ = [
    "Graph",
    "compat",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'manyhop_dgl' has no attribute {name!r}")
    try:
        value = getattr(import_module(f"manyhop_dgl.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "dgl":
            raise
        raise MissingExtraError("dgl", "dgl", f"manyhop_dgl.{name}") from None
    globals()[name] = value
    return value
