"""Which part of a graph each node belongs to: by METIS, or as given. Nodes of a part get consecutive numbers.

Ranks and nodes of a run hold equal slices of all rows, by arithmetic (``features.sources``). METIS's parts are
therefore made exactly equal, per node type: parts are slices, for as many ranks as there are parts, and for any divisor
of that number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.files.rows import Rows
from manyhop.files.stored_graph import StoredEdges, StoredGraph, tensor_of
from manyhop.graph import HOMOGENEOUS_NODE, NodeType
from manyhop.graph.metis import Ints, metis_parts
from manyhop.system.memory import require_memory

Order = dict[NodeType, Tensor]
"""Node type -> ``[count] int64``: the node at the source that gets each number, ``0, 1, 2, ...``."""

_PIECE = 1 << 22  # edges at a time


def metis_order(graph: StoredGraph, num_parts: int, report: Callable[[str], None]) -> Order:
    """Order nodes by the parts that METIS finds, across all node types, with few edges between parts.

    Where a part has more nodes of a type than its share, those with the fewest neighbours go to other parts.

    Args:
        graph: the graph on disk.
        num_parts: number of parts, of as many nodes of each type.
        report: gets a sentence about the result.

    Raises:
        InputError: fewer nodes than parts, or no edges between different nodes.
        CapacityError: the edges do not fit in memory, which METIS needs.
        MissingExtraError: pymetis is not installed.
    """
    counts = {name: nodes.count for name, nodes in graph.nodes.items()}
    num_edges, total = sum(stored.count for stored in graph.edges.values()), sum(counts.values())
    if not 2 <= num_parts <= total:
        raise InputError(f"Expected 2 to {total} parts, as there are {total} nodes, got {num_parts}.")
    found = metis_parts(_pieces(graph), num_edges, total, num_parts)
    if not found.degree.any():
        raise InputError("Expected edges between different nodes, which METIS keeps together, got none.")
    order, offset, moved = {}, 0, 0
    for name, count in counts.items():
        part = found.part[offset : offset + count]
        fitted = _equal_parts(part, found.degree[offset : offset + count], num_parts)
        moved += int((fitted != part).sum())
        order[name] = _by_part(fitted)
        offset += count
    report(
        f"METIS: {num_parts} parts; {found.cut:.1%} of the edges join two of them. {moved} of {total} nodes changed "
        "their part, so that all parts have as many nodes of each type."
    )
    return order


def given_order(graph: StoredGraph, given: Mapping[NodeType, Rows], report: Callable[[str], None]) -> Order:
    """Order nodes by parts that the user names; nodes of other types keep their order.

    Args:
        graph: the graph on disk.
        given: node type -> ``[count]`` integer, the part of each node, from 0.
        report: gets a sentence about their sizes.

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
        report(
            f"{rows.paths[0]}: {len(sizes)} parts of {sizes.min(initial=count)} to {sizes.max(initial=0)} nodes{what}; "
            "ranks hold equal slices of the rows, in their order."
        )
    return order


def edges_of(graph: StoredGraph, stored: StoredEdges) -> tuple[Tensor, Tensor]:
    """Return sources and destinations, ``[count]`` integer each, mapped where the folder has them.

    Raises:
        GraphError: compressed columns that make no sense.
        CapacityError: edges that the folder has as compressed columns only do not fit in memory.
    """
    if stored.edge_index is not None:
        src, dst = tensor_of(stored.edge_index)
        return src, dst
    assert stored.row is not None
    assert stored.colptr is not None
    require_memory(f"{stored.row.paths[0]}: its edge_index", 16 * stored.count, "Store edge_index beside it.")
    row, colptr = tensor_of(stored.row), tensor_of(stored.colptr)
    graph.check_columns({id(stored.row): row, id(stored.colptr): colptr})
    return row, torch.repeat_interleave(torch.diff(colptr.long()))


def _by_part(parts: Ints) -> Tensor:
    return torch.from_numpy(np.argsort(parts, kind="stable"))


def _equal_parts(parts: Ints, degrees: Ints, num_parts: int) -> Ints:
    """Give each part its share, as slices of rows have; nodes of the lowest degree leave parts that have more."""
    shares = np.diff(len(parts) * np.arange(num_parts + 1) // num_parts)
    sizes = np.bincount(parts, minlength=num_parts)
    order = np.lexsort((-degrees, parts))
    place = np.arange(len(parts)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # within its part
    surplus = order[place >= np.repeat(shares, sizes)]
    fitted = parts.copy()
    fitted[surplus] = np.repeat(np.arange(num_parts), np.maximum(shares - sizes, 0))
    return fitted


def _pieces(graph: StoredGraph) -> Iterator[tuple[Ints, Ints]]:
    """Edges of all types, with nodes numbered across types."""
    first, offset = {}, 0
    for name, nodes in graph.nodes.items():
        first[name] = offset
        offset += nodes.count
    for (src_type, _, dst_type), stored in graph.edges.items():
        src, dst = edges_of(graph, stored)
        for begin in range(0, stored.count, _PIECE):
            piece = slice(begin, begin + _PIECE)
            yield src[piece].long().numpy() + first[src_type], dst[piece].long().numpy() + first[dst_type]
