"""One copy of a graph per node, for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from manyhop.errors import InputError
from manyhop.memory import sharing
from manyhop.memory.places import Place
from manyhop.memory.stores import leaves_host
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop_dgl.graph.graph import Graph

T = TypeVar("T")


def share(
    load: Callable[[], T] | T,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    placement: Place = "shared",
    device: torch.device | str | None = None,
) -> T:
    """Keep one copy of a graph per node: ``g = manyhop_dgl.share(load)``.

    Every rank of the run calls it, in the same order as its other calls.

    ``load()`` runs on one rank of each node. Every rank, also that one, gets its own object, whose tensors are
    views of the same memory. A single process on its node gets the result of ``load()``. Nodes may load at
    different speed: all ranks return when all nodes are done.

    Return a :class:`manyhop_dgl.Graph`, as ``Graph.from_dgl(g)``: what samplers read is shared then, and made once for
    weights and masks, too. Of a ``DGLGraph``, edges and data are shared, but its tables of other formats are made by
    each rank for itself. What is written into a tensor is seen by all ranks, what is set on the graph
    (``g.ndata["x"] = ...``) by one. Tensors that are memory-mapped files remain mapped files.

    The memory has no name in the file system and is free once no process uses it any more, also after a crash. While
    it is filled, ``load()``'s own copy also exists.

    Args:
        load: a function that returns the graph, or an object for pickle such as ``(g, split)``; must not
            communicate with other ranks. Or a graph; then ranks that loaded it in vain should drop it, as
            ``g = share(g)`` does.
        timeout: seconds to wait for other ranks' ``load()``: on this node, then on the others.
        placement: ``"shared"``: host memory, once per node. Or another place for the data of two or more dimensions of
            a :class:`manyhop_dgl.Graph`, and for its edges where GPUs read them: as ``Graph(placement=)``. All ranks of
            the run call it.
        device: this rank's GPU, for places of GPUs.

    Raises:
        RankError: ``load()`` failed or was killed on another rank, or takes too long there; the ranks make different
            calls.
        InputError: the data cannot be passed to other processes, or has tensors that are not on the CPU.
        CapacityError: there is not enough memory.
    """
    if isinstance(load, Graph) or hasattr(load, "canonical_etypes"):
        graph = cast(Any, load)
        shared = sharing.share(lambda: graph, what=f"a graph of {graph.canonical_etypes}", timeout=timeout)
        return cast(T, _placed(shared, placement, device))
    if not callable(load):
        raise InputError(
            f"Expected a function that loads a graph, or a graph, got {type(load).__name__}. Pass a function: "
            "share(lambda: Graph.from_dgl(dataset[0]))."
        )
    return cast(T, _placed(sharing.share(load, timeout=timeout), placement, device))


def _placed(data: object, placement: Place, device: torch.device | str | None) -> object:
    """Return the data with its graphs on GPUs, or spread over nodes."""
    if not leaves_host(placement, device):
        return data
    parts = data if isinstance(data, tuple) else (data,)
    if not any(isinstance(part, Graph) for part in parts):
        raise InputError(
            f"Expected a manyhop_dgl.Graph, or a tuple with one, for placement={placement!r} with device={device!r}, "
            f"got {type(data).__name__}. Return Graph.from_dgl(g) from load()."
        )
    moved = tuple(part.moved(placement, device) if isinstance(part, Graph) else part for part in parts)
    return moved if isinstance(data, tuple) else moved[0]
