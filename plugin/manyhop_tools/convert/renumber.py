"""A graph on disk, written again with other numbers of its nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.files.graph_writer import GraphWriter, NodeIds, edge_pieces
from manyhop.files.ids import SourceIds
from manyhop.files.part import CHUNK
from manyhop.files.rows import Rows
from manyhop.files.stored_graph import Others, StoredGraph, StoredNodes, tensor_of
from manyhop.graph import NodeType
from manyhop_tools.convert.partition import Order, edges_of


def renumber(graph: StoredGraph, writer: GraphWriter, order: Order, report: Callable[[str], None]) -> None:
    """Write a graph whose nodes have other numbers: their tensors, edges, and node ids in other tensors.

    The folder has the number of each node at the source, or the id that it had there, in its file of ids. Edges of the
    same destination keep their order.

    Args:
        graph: what to write again.
        writer: of the new folder.
        order: node type -> ``[count] int64``, the node that gets each number; types that are not in it keep theirs.
        report: gets a sentence about tensors that may hold node ids, but are not known to.

    Raises:
        InputError: a tensor holds nodes of several types.
    """
    new = {name: torch.empty_like(old).scatter_(0, old, torch.arange(len(old))) for name, old in order.items()}
    for name, nodes in graph.nodes.items():
        others = _others(nodes.others, new, report)
        if name not in order:
            tensors, ids = nodes.tensors, None if nodes.ids is None else SourceIds.load(nodes.ids)
        else:
            tensors = {key: _taken(rows, order[name]) for key, rows in nodes.tensors.items()}
            ids = _ids(nodes, order[name])
        writer.add_nodes(name, nodes.count, tensors, others, ids)
    for edge_type, stored in graph.edges.items():
        src, dst = edges_of(graph, stored)
        kinds, pieces = edge_pieces(src, dst, stored.tensors)
        sorter = writer.sorter(kinds)
        for some_src, some_dst, columns in pieces:
            some_src = renumbered(some_src, edge_type[:1], new)
            sorter.add(some_src, renumbered(some_dst, edge_type[2:], new), columns)
        writer.add_sorted(
            edge_type,
            sorter,
            graph.nodes[edge_type[0]].count,
            graph.nodes[edge_type[2]].count,
            transposed=stored.transposed,
            others=_others(stored.others, new, report),
        )
    writer.add_others(_others(graph.others, new, report))
    for tensors in [*(n.tensors for n in graph.nodes.values()), *(e.tensors for e in graph.edges.values())]:
        for name, rows in tensors.items():
            if "index" in name:  # nodes, by PyG's convention
                _report_ids(name, rows.dtype, report)


def _ids(nodes: StoredNodes, order: Tensor) -> SourceIds:
    """What each node was at the source."""
    if nodes.ids is None:
        return SourceIds(order.numpy())
    ids = SourceIds.load(nodes.ids)
    if len(ids) != nodes.count:
        raise InputError(f"{nodes.ids}: expected an id for each of {nodes.count} nodes, got {len(ids)}.")
    return ids.taken(order)


def _others(others: Others, new: Mapping[NodeType, Tensor], report: Callable[[str], None]) -> dict[str, Any]:
    found: dict[str, Any] = dict(others.values)
    for name, rows in others.tensors.items():
        tensor = tensor_of(rows)
        if name in others.node_ids:
            types = others.node_ids[name]
            if not types:
                raise InputError(
                    f"'{name}' holds nodes of several types, which cannot be numbered anew: leave --partition out."
                )
            found[name] = NodeIds(renumbered(tensor, types, new), types)
            continue
        _report_ids(name, tensor.dtype, report)
        found[name] = tensor
    return found


def _report_ids(name: str, dtype: torch.dtype, report: Callable[[str], None]) -> None:
    if dtype in (torch.int32, torch.int64):
        report(f"'{name}' is not known to hold nodes: its numbers stay those of the source.")


def renumbered(ids: Tensor, node_types: tuple[NodeType, ...], new: Mapping[NodeType, Tensor]) -> Tensor:
    """Return other numbers of nodes: of one type, or ``[len(node_types), ...]``, a type for each row.

    Numbers out of range, such as -1 for none, stay.
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
    """Rows of a tensor in another order, read by number."""

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
        """The file's checksum is that of another order."""
