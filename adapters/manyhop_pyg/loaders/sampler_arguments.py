"""The arguments by which loaders of neighbours make their sampler."""

from __future__ import annotations

from typing import Any

from torch_geometric.sampler import BaseSampler

from manyhop_pyg.samplers.neighbor import NeighborSampler
from manyhop_pyg.typing import PyGData


def sampler_of_arguments(loader: object, data: PyGData, given: BaseSampler | None, **arguments: Any) -> BaseSampler:
    """Return the sampler of a loader, and keep it and its arguments as attributes of the loader.

    Lightning makes a loader anew from attributes that are called as the arguments.

    Args:
        loader: gets an attribute for each argument, and ``neighbor_sampler``.
        data: of the loader.
        given: a sampler that is used in place of one made of the arguments; ``None``: there is none.
        **arguments: of :class:`NeighborSampler`.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
        GraphError: a topology, times or weights that are wrong.
    """
    sampler = NeighborSampler(data, **arguments) if given is None else given
    for name, value in {**arguments, "neighbor_sampler": sampler}.items():
        setattr(loader, name, value)
    return sampler
