"""manyhop: neighbour sampling and feature loading for graph neural networks."""

from manyhop.system.allocator import configure_at_import as _configure_allocator
from manyhop.system.pool import use_torch_memory
from manyhop.world import World, init, shutdown

_configure_allocator()

__version__ = "0.1.0"

__all__ = ["World", "__version__", "init", "shutdown", "use_torch_memory"]
