"""manyhop: neighbour sampling and feature loading for graph neural networks."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

from manyhop.ranks.world import World, init, shutdown
from manyhop.system.allocator import configure_at_import as _configure_allocator
from manyhop.system.allocator import use_torch_memory

if TYPE_CHECKING:
    from manyhop import optim as optim
    from manyhop.optim import Embedding as Embedding

_configure_allocator()

__version__ = "0.2.0"

__all__ = ["Embedding", "World", "__version__", "init", "masks", "optim", "shutdown", "use_torch_memory"]

_MODULES = ("errors", "lightning", "masks", "optim")  # imported when first used


def __getattr__(name: str) -> _Any:
    if name in _MODULES:
        return _import_module(f"manyhop.{name}")
    if name == "Embedding":
        return _import_module("manyhop.optim").Embedding
    if name.endswith(("Loader", "Sampler")):
        # `from manyhop import NeighborLoader` would replace the text of an AttributeError.
        raise ImportError(f"manyhop has no {name}. Import it from manyhop_pyg, or for DGL from manyhop_dgl.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
