"""manyhop: neighbour sampling and feature loading for graph neural networks."""

from manyhop.world import World, init, shutdown

__version__ = "0.1.0"

__all__ = ["World", "__version__", "init", "shutdown"]
