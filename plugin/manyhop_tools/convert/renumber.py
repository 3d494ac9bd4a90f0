"""Orders of nodes by part, from METIS or given, and the renumbering of node ids.

Nodes of a part get consecutive numbers. Ranks and nodes of a run hold equal slices of all rows, by arithmetic
(``features.sources``). METIS's parts are therefore made equal per node type, so that parts are slices for as many ranks
as there are parts, and for any divisor of that number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.files.graph_writer import GraphWriter, NodeIds, edge_pieces
from manyhop.files.ids import SourceIds
from manyhop.files.part import CHUNK
from manyhop.files.rows import Rows
from manyhop.files.stored_graph import Others, StoredEdges, StoredGraph, StoredNodes, tensor_of
from manyhop.graph import HOMOGENEOUS_NODE, NodeType
from manyhop.graph.metis import Ints, metis_parts
from manyhop.system.memory import require_memory
from manyhop_tools.convert.source import report

Order = dict[NodeType, Tensor]
"""Node type -> ``[count] int64``: the node at the source that gets each number, ``0, 1, 2, ...``."""

_PIECE = 1 << 22  # edges at a time


def metis_order(graph: StoredGraph, num_parts: int) -> Order:
    """Order nodes by the parts that METIS finds, across all node types, with few edges between parts.

    If a part has more nodes of a type than its share, the nodes with the fewest neighbours move to other parts.

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


def given_order(graph: StoredGraph, given: Mapping[NodeType, Rows]) -> Order:
    """Order nodes by the parts in ``given``, ``[count]`` integer from 0; nodes of other types keep their order."""
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


def _edges_of(graph: StoredGraph, stored: StoredEdges) -> tuple[Tensor, Tensor]:
    """Return sources and destinations, ``[count]`` integer each, mapped if the folder contains them."""
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
    """Equalise parts, so that they are slices of rows. Nodes of the lowest degree leave parts that are too large."""
    shares = np.diff(len(parts) * np.arange(num_parts + 1) // num_parts)
    sizes = np.bincount(parts, minlength=num_parts)
    order = np.lexsort((-degrees, parts))
    place = np.arange(len(parts)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # within its part
    surplus = order[place >= np.repeat(shares, sizes)]
    fitted = parts.copy()
    fitted[surplus] = np.repeat(np.arange(num_parts), np.maximum(shares - sizes, 0))
    return fitted


def _pieces(graph: StoredGraph) -> Iterator[tuple[Ints, Ints]]:
    """Yield edges of all types, with nodes numbered across types."""
    first, offset = {}, 0
    for name, nodes in graph.nodes.items():
        first[name] = offset
        offset += nodes.count
    for (src_type, _, dst_type), stored in graph.edges.items():
        src, dst = _edges_of(graph, stored)
        for begin in range(0, stored.count, _PIECE):
            piece = slice(begin, begin + _PIECE)
            yield src[piece].long().numpy() + first[src_type], dst[piece].long().numpy() + first[dst_type]


def renumber(graph: StoredGraph, writer: GraphWriter, order: Order) -> None:
    """Write a graph whose nodes have other numbers: their tensors, edges, and node ids in other tensors.

    The folder has the number of each node at the source, or the id that it had there, in its file of ids. Edges of the
    same destination keep their order. Types that are not in ``order`` keep their numbers.

    Raises:
        InputError: a tensor holds nodes of multiple types.
    """
    new = {name: torch.empty_like(old).scatter_(0, old, torch.arange(len(old))) for name, old in order.items()}
    for name, nodes in graph.nodes.items():
        others = _others(nodes.others, new)
        if name not in order:
            tensors, ids = nodes.tensors, None if nodes.ids is None else SourceIds.load(nodes.ids)
        else:
            tensors = {key: _taken(rows, order[name]) for key, rows in nodes.tensors.items()}
            ids = _ids(nodes, order[name])
        writer.add_nodes(name, nodes.count, tensors, others, ids)
    for edge_type, stored in graph.edges.items():
        src, dst = _edges_of(graph, stored)
        kinds, pieces = edge_pieces(src, dst, stored.tensors)
        sorter = writer.sorter(kinds)
        for some_src, some_dst, columns in pieces:
            some_src = _renumbered(some_src, edge_type[:1], new)
            sorter.add(some_src, _renumbered(some_dst, edge_type[2:], new), columns)
        writer.add_sorted(
            edge_type,
            sorter,
            graph.nodes[edge_type[0]].count,
            graph.nodes[edge_type[2]].count,
            transposed=stored.transposed,
            others=_others(stored.others, new),
        )
    writer.add_others(_others(graph.others, new))
    for tensors in [*(n.tensors for n in graph.nodes.values()), *(e.tensors for e in graph.edges.values())]:
        for name, rows in tensors.items():
            if "index" in name:  # nodes, by PyG's convention
                _report_ids(name, rows.dtype)


def _ids(nodes: StoredNodes, order: Tensor) -> SourceIds:
    """Return the original ids of the nodes."""
    if nodes.ids is None:
        return SourceIds(order.numpy())
    ids = SourceIds.load(nodes.ids)
    if len(ids) != nodes.count:
        raise InputError(f"{nodes.ids}: expected an id for each of {nodes.count} nodes, got {len(ids)}.")
    return ids.taken(order)


def _others(others: Others, new: Mapping[NodeType, Tensor]) -> dict[str, Any]:
    found: dict[str, Any] = dict(others.values)
    for name, rows in others.tensors.items():
        tensor = tensor_of(rows)
        if name in others.node_ids:
            types = others.node_ids[name]
            if not types:
                raise InputError(
                    f"'{name}' holds nodes of multiple types, which cannot be renumbered. Leave --partition out."
                )
            found[name] = NodeIds(_renumbered(tensor, types, new), types)
            continue
        _report_ids(name, tensor.dtype)
        found[name] = tensor
    return found


def _report_ids(name: str, dtype: torch.dtype) -> None:
    if dtype in (torch.int32, torch.int64):
        report(f"'{name}' may hold node ids, but is not marked: its numbers are unchanged.")


def _renumbered(ids: Tensor, node_types: tuple[NodeType, ...], new: Mapping[NodeType, Tensor]) -> Tensor:
    """Return other numbers of nodes: of one type, or ``[len(node_types), ...]``, a type for each row.

    Numbers out of range, such as -1 for none, do not change.
    """
    rows = ids[None] if len(node_types) == 1 else ids
    found = []
    for row, name in zip(rows, node_types, strict=True):
        if name in new and len(new[name]):
            inside = (row >= 0) & (row < len(new[name]))
            row = torch.where(inside, new[name][row.long().where(inside, 0)].to(row.dtype), row)
        found.append(row)
    return found[0] if len(node_types) == 1 else torch.stack(found)


def _taken(rows: Rows, order: Tensor) -> Rows:
    return Rows([_TakenPart(tensor_of(rows), order, rows.paths[0])], rows.dtype, rows.shape[1:])


@dataclass(frozen=True)
class _TakenPart:
    """Rows of a tensor in a different order, read by number."""

    tensor: Tensor
    order: Tensor
    path: Path

    @property
    def num_rows(self) -> int:
        return len(self.order)

    def cuts(self, begin: int, end: int) -> list[tuple[int, int]]:
        step = max(1, CHUNK // max(1, math.prod(self.tensor.shape[1:]) * self.tensor.itemsize))
        return [(i, min(i + step, end)) for i in range(begin, end, step)]

    def read(self, begin: int, end: int, out: Tensor) -> None:
        out.copy_(self.tensor[self.order[begin:end]])

    def check(self, rows: Tensor | None) -> None:
        """Do nothing: the file's checksum applies to a different order."""
