"""Which part of a graph each node belongs to: by METIS, or as the user says. Nodes of a part get consecutive numbers.

Ranks and nodes of a run hold equal slices of all rows, by arithmetic (``features.sources.shards``). METIS's parts are
therefore made exactly equal, per node type: parts are slices, for as many ranks as there are parts, and for any divisor
of that number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.errors import InputError, MissingExtraError
from manyhop.files.rows import Rows
from manyhop.files.stored_graph import StoredEdges, StoredGraph, tensor_of
from manyhop.graph import HOMOGENEOUS_NODE, NodeType
from manyhop.system.memory import require_memory

Ints = npt.NDArray[np.int64]
Order = dict[NodeType, Tensor]
"""Node type -> ``[count] int64``: the node at the source that gets each number, ``0, 1, 2, ...``."""

_PIECE = 1 << 22  # edges at a time
_BYTES_PER_EDGE = 220  # both directions with weights, sorted, and METIS's coarser copies: of 12 million edges


def metis_order(graph: StoredGraph, num_parts: int, say: Callable[[str], None]) -> Order:
    """Order nodes by the parts that METIS finds, across all node types, with few edges between parts.

    The union of all edge types is partitioned, without directions; parallel edges count as often as they occur. Source:
    Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs", 1998. Where a part
    has more nodes of a type than its share, those with the fewest edges go to other parts.

    Args:
        graph: the graph on disk.
        num_parts: number of parts, of as many nodes of each type.
        say: gets a sentence about the result.

    Raises:
        InputError: fewer nodes than parts, or no edges.
        CapacityError: the edges do not fit in memory, which METIS needs.
        MissingExtraError: pymetis is not installed.
    """
    try:
        import pymetis
    except ImportError:
        raise MissingExtraError("pymetis", "metis", "Partitioning by METIS") from None
    counts = {name: nodes.count for name, nodes in graph.nodes.items()}
    total = sum(counts.values())
    if not 2 <= num_parts <= total:
        raise InputError(f"Expected --partition with 2 to {total} parts, as there are {total} nodes, got {num_parts}.")
    begin, weights = _undirected(graph)
    starts, neighbours = begin
    if not len(neighbours):
        raise InputError(
            "Expected edges between different nodes, which METIS keeps together, got none: leave --partition out."
        )
    cut, found = pymetis.part_graph(num_parts, pymetis.CSRAdjacency(starts, neighbours), eweights=weights)
    parts, degrees = np.asarray(found, np.int64), np.diff(starts)
    order, offset, moved = {}, 0, 0
    for name, count in counts.items():
        of_type = slice(offset, offset + count)
        fitted = _equal_parts(parts[of_type], degrees[of_type], num_parts)
        moved += int((fitted != parts[of_type]).sum())
        order[name] = _by_part(fitted)
        offset += count
    say(
        f"METIS: {num_parts} parts; {cut / (weights.sum() / 2):.1%} of the edges join two of them. {moved} of {total} "
        "nodes changed their part, so that all parts have as many nodes of each type."
    )
    return order


def given_order(graph: StoredGraph, given: Mapping[NodeType, Rows], say: Callable[[str], None]) -> Order:
    """Order nodes by parts that the user names; nodes of other types keep their order.

    Args:
        graph: the graph on disk.
        given: node type -> ``[count]`` integer, the part of each node, from 0.
        say: gets a sentence about their sizes.

    Raises:
        InputError: another node type, shape or dtype; a negative part.
    """
    order = {}
    for name, rows in given.items():
        if name not in graph.nodes:
            raise InputError(f"Expected --partition for a node type of {list(graph.nodes)}, got '{name}'.")
        what, count = "" if name == HOMOGENEOUS_NODE else f" of '{name}'", graph.nodes[name].count
        if rows.shape != (count,) or rows.dtype.is_floating_point or rows.dtype.is_complex:
            raise InputError(
                f"{rows.paths[0]}: expected the number of a part for each of {count} nodes{what}, integers of shape "
                f"[{count}], got {rows.dtype} of shape {list(rows.shape)}."
            )
        parts = rows.read().long().numpy()
        if count and parts.min() < 0:
            raise InputError(f"{rows.paths[0]}: expected parts 0, 1, 2, ..., got {parts.min()}.")
        order[name] = _by_part(parts)
        sizes = np.unique(parts, return_counts=True)[1]
        say(
            f"{rows.paths[0]}: {len(sizes)} parts of {sizes.min(initial=count)} to {sizes.max(initial=0)} nodes{what}; "
            "ranks hold equal slices of the rows, in their order."
        )
    return order


def edges_of(stored: StoredEdges) -> tuple[Tensor, Tensor]:
    """Return sources and destinations, ``[count]`` integer each, mapped where the folder has them."""
    if stored.edge_index is not None:
        src, dst = tensor_of(stored.edge_index)
        return src, dst
    assert stored.row is not None
    assert stored.colptr is not None
    require_memory(f"{stored.row.paths[0]}: its edge_index", 16 * stored.count, "Store edge_index beside it.")
    return tensor_of(stored.row), torch.repeat_interleave(torch.diff(tensor_of(stored.colptr).long()))


def _by_part(parts: Ints) -> Tensor:
    return torch.from_numpy(np.argsort(parts, kind="stable"))


def _equal_parts(parts: Ints, degrees: Ints, num_parts: int) -> Ints:
    """Move nodes of the lowest degree out of parts that have more than their share: ``count * (p + 1) // num_parts``
    less ``count * p // num_parts``, as slices of rows have."""
    shares = np.diff(len(parts) * np.arange(num_parts + 1) // num_parts)
    sizes = np.bincount(parts, minlength=num_parts)
    order = np.lexsort((-degrees, parts))
    place = np.arange(len(parts)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # within its part
    surplus = order[place >= np.repeat(shares, sizes)]
    fitted = parts.copy()
    fitted[surplus] = np.repeat(np.arange(num_parts), np.maximum(shares - sizes, 0))
    return fitted


def _undirected(graph: StoredGraph) -> tuple[tuple[Ints, Ints], Any]:
    """Neighbours of all nodes, those of the node types one after the other: ``([num_nodes + 1], [n])``, and ``[n]`` how
    often each of these edges occurs. No loops."""
    total = sum(nodes.count for nodes in graph.nodes.values())
    num_edges = sum(stored.count for stored in graph.edges.values())
    advice = "Partition on a machine with more memory, or pass the parts: --partition FILE."
    require_memory(f"METIS with {num_edges} edges", _BYTES_PER_EDGE * num_edges, advice)
    keys = np.empty(2 * num_edges, np.int64)
    at = 0
    for src, dst in _pieces(graph):
        keep = src != dst
        src, dst = src[keep], dst[keep]
        keys[at : at + len(src)] = src * total + dst
        keys[at + len(src) : at + 2 * len(src)] = dst * total + src
        at += 2 * len(src)
    pairs, weights = np.unique(keys[:at], return_counts=True)
    del keys
    starts = np.searchsorted(pairs, np.arange(total + 1) * total)
    return (starts, pairs % total), weights


def _pieces(graph: StoredGraph) -> Iterator[tuple[Ints, Ints]]:
    """Edges of all types, with nodes numbered across types."""
    first, offset = {}, 0
    for name, nodes in graph.nodes.items():
        first[name] = offset
        offset += nodes.count
    for (src_type, _, dst_type), stored in graph.edges.items():
        src, dst = edges_of(stored)
        for begin in range(0, stored.count, _PIECE):
            piece = slice(begin, begin + _PIECE)
            yield src[piece].long().numpy() + first[src_type], dst[piece].long().numpy() + first[dst_type]
