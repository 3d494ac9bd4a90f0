"""Edges in lists of pairs and in arrays of shape [2, num_edges], as sources of a conversion."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import GraphError, InputError
from manyhop.files.formats import open as open_rows
from manyhop.files.formats import read_fortran_npy
from manyhop.files.graph_writer import GraphWriter
from manyhop.files.ids import IdCollector, IdMap, is_text, whole_numbers
from manyhop.files.rows import Rows
from manyhop.files.sort import EdgeSorter, Kind
from manyhop.files.tables import Table, is_table, tensor
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, NodeType
from manyhop_tools.convert.node_tables import NodeTable
from manyhop_tools.convert.source import both_ways, check_both_ways, least_counts, report

_PIECE = 1 << 20


class EdgeIndexFile:
    """Integers of shape ``[2, num_edges]``; also as numpy saves the transpose of an array ``[num_edges, 2]``.

    With ``pairs``, a pair of nodes in each row is accepted, too. ``raw`` are the numbers of a raw file: pairs, or all
    sources and then all destinations.
    """

    def __init__(self, path: Path, *, pairs: bool = False, raw: Rows | None = None) -> None:
        fortran = read_fortran_npy(path)
        self._pairs = fortran
        rows = raw or self._pairs or open_rows(path)
        shape = rows.shape
        is_paired = (pairs or raw is not None) and shape[1:] == (2,)
        if raw is not None and len(shape) == 1 and shape[0] % 2 == 0:
            shape = (2, shape[0] // 2)
        if self._pairs is None and is_paired:
            self._pairs = rows
        ends = shape[1:] if self._pairs is not None else shape[:1]
        whole = not (rows.dtype.is_floating_point or rows.dtype.is_complex)
        if ends != (2,) or len(shape) != 2 or not rows.can_map or not whole:
            got = rows.shape[::-1] if fortran is not None else rows.shape
            expected = "[2, num_edges]" + (" or [num_edges, 2]" if pairs or raw is not None else "")
            raise InputError(
                f"{path}: expected an edge_index, integers of shape {expected} in one file, got {rows.dtype} of shape "
                f"{list(got)}."
            )
        self._rows = rows.flat()
        self.num_edges = self._rows.num_rows // 2

    def pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield sources and destinations, ``[n] int64``, of some edges at a time."""
        for begin in range(0, self.num_edges, _PIECE):
            end = min(begin + _PIECE, self.num_edges)
            if self._pairs is not None:
                src, dst = self._pairs.read(begin, end).long().unbind(1)
                yield src.contiguous(), dst.contiguous()
            else:
                n = self.num_edges
                yield self._rows.read(begin, end).long(), self._rows.read(n + begin, n + end).long()


@dataclass(frozen=True)
class EdgeLists:
    """Files of edges, and tensors and tables of their nodes."""

    options: argparse.Namespace
    """Arguments of ``manyhop convert``: ``src``, ``dst``, ``edge_columns``, ``no_header``, ``delimiter``, ``ids``,
    ``both_ways``, ``node_id``."""
    files: Sequence[tuple[EdgeType, Path]]
    """Files of the same type follow each other."""
    num_nodes: Mapping[NodeType, int]
    """Numbers of nodes, if not 1 + the highest id."""
    node_tensors: Mapping[NodeType, Mapping[str, Rows]]
    """Node type -> name -> ``[num_nodes, ...]``."""
    node_tables: Mapping[NodeType, Path]
    """Node type -> a CSV or Parquet file with an id and numbers in each row."""
    raw: Mapping[Path, Rows]
    """Raw files among the files of edges, with dtype and width."""

    @property
    def homogeneous(self) -> bool:
        """Return whether the edges have no types."""
        return self.files[0][0] == HOMOGENEOUS_EDGE

    def write(self, writer: GraphWriter) -> None:
        """Write the graph."""
        edge_types = list(dict.fromkeys(edge_type for edge_type, _ in self.files))
        node_types = list(dict.fromkeys(end for src, _, dst in edge_types for end in (src, dst)))
        for name in (*self.num_nodes, *self.node_tensors, *self.node_tables):
            if name not in node_types:
                raise InputError(f"Expected the node types {node_types}, got '{name}'.")
        if self.options.both_ways:
            check_both_ways(edge_types)
        files = [_EdgeFile(self.options, edge_type, path, self.raw.get(path)) for edge_type, path in self.files]
        tables = {
            name: NodeTable(name, _table(path, self.options), self.options.node_id)
            for name, path in self.node_tables.items()
        }
        maps = _map_ids(self.options.ids, node_types, [*files, *tables.values()])
        sorters: dict[EdgeType, EdgeSorter] = {}
        for file in files:
            for src, dst, columns in file.pieces(maps):
                if file.edge_type not in sorters:
                    kinds: dict[str, Kind] = {name: (v.dtype, tuple(v.shape[1:])) for name, v in columns.items()}
                    sorters[file.edge_type] = writer.sorter(kinds)
                if self.options.both_ways:
                    src, dst, columns = both_ways(src, dst, columns)
                sorters[file.edge_type].add(src, dst, columns)
        for edge_type in edge_types:
            if edge_type not in sorters:
                sorters[edge_type] = writer.sorter({})  # no edges: the kinds of columns are not known
        counts, least = {}, least_counts(sorters)
        for name in node_types:
            given = dict(self.node_tensors.get(name, {}))
            rows, columns = tables[name].tensors(maps.get(name)) if name in tables else (None, {})
            for twice in set(given) & set(columns):
                path = self.node_tables[name]
                raise InputError(f"{path}: has a column '{twice}', as --node-tensor has: rename one of them.")
            counts[name] = self._count(name, least[name], maps, rows)
            writer.add_nodes(name, counts[name], {**given, **columns}, ids=maps.get(name))
        for edge_type, sorter in sorters.items():
            writer.add_sorted(edge_type, sorter, counts[edge_type[0]], counts[edge_type[2]])

    def _count(self, name: NodeType, least: int, maps: Mapping[NodeType, IdMap], rows: int | None) -> int:
        """Return the number of nodes of a type. Its table has ``rows`` rows, if there is one."""
        given = {"--num-nodes": self.num_nodes[name]} if name in self.num_nodes else {}
        given |= {f"the tensor '{key}'": column.num_rows for key, column in self.node_tensors.get(name, {}).items()}
        given |= {} if rows is None else {str(self.node_tables[name]): rows}
        given |= {"the ids": len(maps[name])} if name in maps else {}
        of = "" if name == HOMOGENEOUS_NODE else f" of '{name}'"
        if len(set(given.values())) > 1:
            counts = ", ".join(f"{count} from {origin}" for origin, count in given.items())
            raise GraphError(f"Expected one number of nodes{of}, got {counts}.")
        origin, count = next(iter(given.items()), ("", least))
        if count < least:
            raise GraphError(
                f"Expected ids{of} below {count}, the number of nodes by {origin}, got {least - 1}. Correct either."
            )
        return count


def _table(path: Path, options: argparse.Namespace) -> Table:
    return Table(path=path, header=not options.no_header, delimiter=options.delimiter)


class _EdgeFile:
    """One file of edges."""

    def __init__(self, options: argparse.Namespace, edge_type: EdgeType, path: Path, raw: Rows | None) -> None:
        self.edge_type, self._path = edge_type, path
        self.node_types = [edge_type[0], edge_type[2]]
        self._table = _table(path, options) if is_table(path) else None
        if self._table is None:
            if options.src or options.dst or options.edge_columns:
                raise InputError(f"{path}: has no columns with names: leave --src, --dst and --edge-columns out.")
            self._edge_index = EdgeIndexFile(path, raw=raw)
            return
        known = self._table.columns()
        if len(known) < 2:
            raise InputError(f"{path}: expected at least two columns, got {known}. See --delimiter.")
        self._ends = [options.src or known[0], options.dst or known[1]]
        self._columns = options.edge_columns.split(",") if options.edge_columns else []
        for name in (*self._ends, *self._columns):
            if name not in known:
                raise InputError(f"{path}: expected a column of {known}, got '{name}'.")
        left = [name for name in known if name not in (*self._ends, *self._columns)]
        if left:
            report(f"{path}: columns that are left out: {', '.join(left)} (see --edge-columns).")

    def ends(self) -> Iterator[list[Any]]:
        """Yield ids of sources and destinations of some edges, as ``pyarrow.Array``; nothing for an edge_index."""
        if self._table is not None:
            yield from self._table.read(self._ends)

    def where(self, end: int) -> str:
        """Return what to call the column of sources (0) or destinations (1)."""
        return f"{self._path}, column '{self._ends[end]}'" if self._table is not None else str(self._path)

    def pieces(self, maps: Mapping[NodeType, IdMap]) -> Iterator[tuple[Tensor, Tensor, dict[str, Tensor]]]:
        """Yield nodes and columns of some edges."""
        if self._table is None:
            for src, dst in self._edge_index.pieces():
                yield src, dst, {}
            return
        for arrays in self._table.read([*self._ends, *self._columns]):
            if not len(arrays[0]):
                continue
            nodes = []
            for end, node_type in enumerate(self.node_types):
                if node_type in maps:
                    nodes.append(maps[node_type].lookup(arrays[end], self.where(end)))
                else:
                    nodes.append(torch.from_numpy(whole_numbers(arrays[end], self.where(end))))
            columns = {
                name: tensor(array, f"{self._path}, column '{name}'")
                for name, array in zip(self._columns, arrays[2:], strict=True)
            }
            yield nodes[0], nodes[1], columns


def _map_ids(
    ids: str | None, node_types: Sequence[NodeType], files: Sequence[_EdgeFile | NodeTable]
) -> dict[NodeType, IdMap]:
    """Return the map of ids of each node type that has one."""
    mapped = set(node_types) if ids == "map" else set() if ids == "keep" else _to_be_mapped(files)
    collectors = {name: IdCollector() for name in node_types if name in mapped}
    for file in files:
        for arrays in file.ends() if mapped & set(file.node_types) else ():
            for end, name in enumerate(file.node_types):
                if name in collectors:
                    collectors[name].add(arrays[end], file.where(end))
    maps = {name: collector.finish() for name, collector in collectors.items()}
    for name, found in maps.items():
        which = "Ids" if name == HOMOGENEOUS_NODE else f"Ids of '{name}'"
        report(f"{which} are mapped to 0 ... {len(found) - 1} in ascending order. The folder also has the originals.")
    return maps


def _to_be_mapped(files: Sequence[_EdgeFile | NodeTable]) -> set[NodeType]:
    """Return the node types with a table, and the types whose ids are texts or integers that cannot be nodes.

    Integers of a type are mapped if one is negative or above ``4 * n + 1,000,000`` for ``n`` ids, with duplicates.
    """
    mapped = {file.node_types[0] for file in files if isinstance(file, NodeTable)}
    lowest: dict[NodeType, int] = {}
    highest: dict[NodeType, int] = {}
    seen: dict[NodeType, int] = {}
    for file in files:
        for arrays in file.ends():
            for end, name in enumerate(file.node_types):
                if is_text(arrays[end]):
                    mapped.add(name)
                elif len(arrays[end]):
                    values = whole_numbers(arrays[end], file.where(end))
                    lowest[name] = min(lowest.get(name, int(values[0])), int(values.min()))
                    highest[name] = max(highest.get(name, 0), int(values.max()))
                    seen[name] = seen.get(name, 0) + len(values)
            if mapped >= set(file.node_types):
                break  # no need to look at the rest
    for name, count in seen.items():
        if name not in mapped and (lowest[name] < 0 or highest[name] > 4 * count + 1_000_000):
            report(f"Ids from {lowest[name]} to {highest[name]} at {count} ends of edges: they are mapped (see --ids).")
            mapped.add(name)
    return mapped
