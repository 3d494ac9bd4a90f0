"""Parts of a graph with few edges between them, by METIS."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from manyhop.errors import GraphError, MissingExtraError
from manyhop.system.memory import require_memory
from manyhop.system.progress import Progress

Ints = npt.NDArray[np.int64]

_MANY_EDGES = 200_000  # take seconds
_BYTES_PER_EDGE = 220  # both directions with weights, sorted, and METIS's coarser copies: of 12 million edges


@dataclass(frozen=True)
class MetisParts:
    """Parts that METIS found."""

    part: Ints
    """``[num_nodes]``: the part of each node."""
    degree: Ints
    """``[num_nodes]``: number of its neighbours, in both directions."""
    cut: float
    """Share of the edges that join two parts."""


def metis_parts(
    edges: Iterable[tuple[Ints, Ints]], num_edges: int, num_nodes: int, num_parts: int, *, recursive: bool = False
) -> MetisParts:
    """Divide nodes into parts of about as many nodes, with few edges between parts.

    Edges have no directions; parallel ones count as often as they occur, loops not at all. Source: Karypis and Kumar,
    "A fast and high quality multilevel scheme for partitioning irregular graphs", 1998.

    Args:
        edges: sources and destinations, in pieces.
        num_edges: number of edges in all pieces.
        num_nodes: number of nodes.
        num_parts: number of parts.
        recursive: bisect recursively, instead of all parts at once.

    Raises:
        GraphError: ids that are not below the number of nodes.
        CapacityError: the edges do not fit in memory.
        MissingExtraError: pymetis is not installed.
    """
    try:
        import pymetis
    except ImportError:
        raise MissingExtraError("pymetis", "metis", "Partitioning by METIS") from None
    advice = "Partition on a machine with more memory, or pass parts of your own."
    require_memory(f"METIS with {num_edges} edges", _BYTES_PER_EDGE * num_edges, advice)
    starts, neighbours, weights = _undirected(edges, num_edges, num_nodes)
    if (
        num_parts == 1 or num_parts > num_nodes or not len(neighbours)
    ):  # METIS would print warnings, or leave parts empty
        part = np.arange(num_nodes) * min(num_parts, num_nodes) // max(1, num_nodes)
        return MetisParts(part, np.diff(starts), float(num_parts > 1 and len(neighbours) > 0))
    adjacency = pymetis.CSRAdjacency(starts, neighbours)
    # METIS keeps the GIL: the bar of many edges is shown at once, and stands still.
    bar = Progress("METIS", num_edges, unit="edges", delay=0.0 if num_edges > _MANY_EDGES else 1.0)
    with closing(bar):
        cut, parts = pymetis.part_graph(num_parts, adjacency, eweights=weights, recursive=recursive)
        bar.add(num_edges)
    return MetisParts(np.asarray(parts, np.int64), np.diff(starts), 2 * cut / float(weights.sum()))


def _undirected(edges: Iterable[tuple[Ints, Ints]], num_edges: int, num_nodes: int) -> tuple[Ints, Ints, Any]:
    """Return begins ``[num_nodes + 1]`` of each node's neighbours, the neighbours ``[n]``, and their multiplicities."""
    keys = np.empty(2 * num_edges, np.int64)
    at = 0
    for src, dst in edges:
        for ids in (src, dst):
            if len(ids) and (ids.min() < 0 or ids.max() >= num_nodes):
                raise GraphError(f"Expected ids of nodes in [0, {num_nodes}), got {ids.min()} to {ids.max()}.")
        keep = src != dst
        src, dst = src[keep], dst[keep]
        keys[at : at + len(src)] = src * num_nodes + dst
        keys[at + len(src) : at + 2 * len(src)] = dst * num_nodes + src
        at += 2 * len(src)
    pairs, weights = np.unique(keys[:at], return_counts=True)
    del keys
    starts = np.searchsorted(pairs, np.arange(num_nodes + 1) * num_nodes)
    return starts, pairs % num_nodes, weights
