"""manyhop: neighbour sampling and feature loading for graph neural networks."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

from manyhop.system.allocator import configure_at_import as _configure_allocator
from manyhop.system.pool import use_torch_memory
from manyhop.world import World, init, shutdown

if TYPE_CHECKING:
    from manyhop import optim
    from manyhop.embedding import Embedding

_configure_allocator()

__version__ = "0.1.0"

__all__ = ["Embedding", "World", "__version__", "init", "optim", "shutdown", "use_torch_memory"]


def __getattr__(name: str) -> _Any:
    if name == "Embedding":
        return _import_module("manyhop.embedding").Embedding
    if name == "optim":
        return _import_module("manyhop.optim")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
