"""manyhop: neighbour sampling and feature loading for graph neural networks."""

__version__ = "0.1.0"
