"""A graph on disk: a folder with ``manyhop.json``, the list of contents, and files of tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from manyhop.arguments import path_of
from manyhop.errors import GraphError, InputError
from manyhop.files.dtypes import dtype_name
from manyhop.files.formats import check_sum, inside, no_others, read_json
from manyhop.files.formats import open as open_rows
from manyhop.files.part import FilePart
from manyhop.files.rows import Rows
from manyhop.graph import (
    HOMOGENEOUS_EDGE,
    HOMOGENEOUS_NODE,
    EdgeInput,
    EdgeType,
    Graph,
    NodeType,
    build_graph,
)
from manyhop.graph.build import INTEGERS, check_colptr, check_ids

MANIFEST = "manyhop.json"
FORMAT, VERSION = "manyhop graph", 1


@dataclass(frozen=True, kw_only=True)
class Others:
    """Attributes of a node type, an edge type or the graph, not of single nodes or edges."""

    tensors: Mapping[str, Rows] = field(default_factory=dict)
    """Name -> rows in any number."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Name -> number, text, or list of them."""
    node_ids: Mapping[str, tuple[NodeType, ...]] = field(default_factory=dict)
    """Names of tensors with node ids -> the type of all ids, or of each row; none: multiple types, known to the reader
    only."""


@dataclass(frozen=True, kw_only=True)
class StoredNodes:
    """The nodes of one type."""

    count: int
    """Number of nodes."""
    tensors: Mapping[str, Rows] = field(default_factory=dict)
    """Name -> ``[count, ...]``."""
    ids: Path | None = None
    """A file with the original ids, unless these were 0, 1, 2, ...: ``.npy``, or ``.parquet`` for texts."""
    others: Others = field(default_factory=Others)


@dataclass(frozen=True, kw_only=True)
class StoredEdges:
    """The edges of one type: as compressed columns (``colptr``, ``row``), as a list (``edge_index``), or both.

    The id of an edge is its position, which is equal in both.
    """

    count: int
    """Number of edges."""
    colptr: Rows | None = None
    """``[num_dst + 1]`` integer: where each destination's edges begin in ``row``."""
    row: Rows | None = None
    """``[count]`` integer: source node of each edge."""
    edge_index: Rows | None = None
    """``[2, count]`` integer: source and destination node of each edge."""
    tensors: Mapping[str, Rows] = field(default_factory=dict)
    """Name -> ``[count, ...]``."""
    transposed: frozenset[str] = frozenset()
    """Names of the tensors that were ``[..., count]`` at their source."""
    others: Others = field(default_factory=Others)


@dataclass(frozen=True, kw_only=True)
class StoredGraph:
    """A graph in a folder, opened without loading by :func:`manyhop.files.open_graph`."""

    path: Path
    """The folder."""
    is_homogeneous: bool
    """Whether it has one node type and one edge type without their own names."""
    nodes: Mapping[NodeType, StoredNodes]
    """By node type, in order."""
    edges: Mapping[EdgeType, StoredEdges]
    """By edge type, in order."""
    others: Others = field(default_factory=Others)

    def features(self) -> Iterator[tuple[str, Rows]]:
        """Yield every tensor that is not topology, with a name such as ``paper.x``."""
        for prefix, found in self._types():
            for name, rows in (*found.tensors.items(), *found.others.tensors.items()):
                yield prefix + name, rows
        yield from self.others.tensors.items()

    def shardable(self) -> frozenset[str]:
        """Return the names of the features that may be sharded.

        These are tensors of two or more dimensions with a row for each node or edge. Others, such as labels, masks,
        times and weights, are small, or needed whole by samplers.
        """
        return frozenset(
            prefix + name
            for prefix, found in self._types()
            for name, rows in found.tensors.items()
            if len(rows.shape) > 1
        )

    def topology(self) -> Iterator[tuple[str, Rows]]:
        """Yield the tables that samplers read, with a name such as ``author.writes.paper.row``."""
        for prefix, stored in self._types():
            if isinstance(stored, StoredEdges):
                for name in ("colptr", "row") if stored.colptr is not None else ("edge_index",):
                    yield prefix + name, getattr(stored, name)

    def _types(self) -> Iterator[tuple[str, StoredNodes | StoredEdges]]:
        """Yield every node and edge type, with what the names of its tensors begin with."""
        start = "" if self.is_homogeneous else "{}."
        yield from ((start.format(node_type), stored) for node_type, stored in self.nodes.items())
        yield from ((start.format(".".join(edge_type)), stored) for edge_type, stored in self.edges.items())

    @property
    def is_compressed(self) -> bool:
        """Return whether samplers can read all edges as the files store them."""
        return all(stored.colptr is not None for stored in self.edges.values())

    @property
    def topology_bytes(self) -> int:
        """Bytes of the tables that samplers read."""
        if self.is_compressed:
            return sum(rows.nbytes for _, rows in self.topology())
        total = 0
        for (_, _, dst), stored in self.edges.items():
            width = 4 if max(stored.count, *(n.count for n in self.nodes.values())) <= 2**31 else 8
            total += 8 * (self.nodes[dst].count + 1) + 2 * width * stored.count  # sources and edge ids
        return total

    @property
    def pointer_bytes(self) -> int:
        """Return how many of these bytes are column pointers."""
        return sum(8 * (self.nodes[dst].count + 1) for _, _, dst in self.edges)

    def build(self) -> Graph:
        """Return the topology, ready to be sampled; compressed columns with ``int32`` ids remain memory-mapped.

        Raises:
            GraphError: ids out of range.
            CapacityError: edges that are not compressed yet do not fit in memory.
        """
        edges = {}
        for edge_type, stored in self.edges.items():
            if stored.colptr is not None and stored.row is not None:
                edges[edge_type] = EdgeInput(row=tensor_of(stored.row), colptr=tensor_of(stored.colptr))
            else:
                assert stored.edge_index is not None
                row, col = tensor_of(stored.edge_index)
                edges[edge_type] = EdgeInput(row=row, col=col)
        return build_graph({name: stored.count for name, stored in self.nodes.items()}, edges)

    def check_columns(self, tensors: Mapping[int, Tensor]) -> None:
        """Check that compressed columns are ones, before anything is made of them. Reads them once.

        ``tensors``: ``id`` of rows -> the tensor, of all tables to check.

        Raises:
            GraphError: naming the file: columns that do not rise from 0 to the number of edges, or ids out of range.
        """
        for edge_type, stored in self.edges.items():
            if stored.colptr is None or stored.row is None or id(stored.row) not in tensors:
                continue
            rows = stored.colptr
            try:
                check_colptr(edge_type, tensors[id(rows)], self.nodes[edge_type[2]].count, stored.count)
                rows = stored.row
                check_ids(edge_type, "source", tensors[id(rows)], self.nodes[edge_type[0]].count)
            except GraphError as error:
                raise GraphError(f"{rows.paths[0]} is damaged, or belongs to another graph: {error}") from None

    def verify(self, *, progress: bool | None = None) -> None:
        """Read all files that have checksums and compare.

        Raises:
            InputError: a file is truncated or damaged.
        """
        for stored in self.edges.values():
            for rows in (stored.colptr, stored.row, stored.edge_index):
                if rows is not None:
                    rows.verify(progress=progress)
        for _, rows in self.features():
            rows.verify(progress=progress)


def tensor_of(rows: Rows) -> Tensor:
    """Return the tensor, mapped if possible, otherwise read."""
    return rows.mapped() if rows.can_map else rows.read()


def open_graph(folder: str | PathLike[str]) -> StoredGraph:
    """Open a graph in a folder, as ``manyhop convert``, :func:`save_graph` and ``manyhop_pyg.save`` write it.

    Only its manifest and the headers of its files are read.

    Raises:
        InputError: no manifest, or one that does not fit the files.
        GraphError: numbers of rows that do not fit the numbers of nodes and edges.
    """
    path = path_of("folder", folder)
    try:
        manifest = read_json(path / MANIFEST)
    except FileNotFoundError:
        got = "a folder without. Convert the graph" if path.exists() else "no such folder. Check the path"
        raise InputError(
            f"{path}: expected a folder with {MANIFEST}, as `manyhop convert` writes it, got {got}."
        ) from None
    read = _Reader(path)
    if read.get(manifest, "format", str) != FORMAT or read.get(manifest, "version", int) != VERSION:
        raise InputError(
            f"{path / MANIFEST}: expected format '{FORMAT}', version {VERSION}, got '{manifest['format']}', version "
            f"{manifest['version']}: it was written by another version of manyhop. Convert the source again."
        )
    no_others(manifest, ("format", "version", "homogeneous", "nodes", "edges", "others"), str(path / MANIFEST))
    nodes: dict[NodeType, StoredNodes] = {}
    for entry in read.get(manifest, "nodes", list):
        node_type = read.get(entry, "type", str)
        read.once(node_type, nodes, "node type")
        nodes[node_type] = read.nodes(entry)
    edges: dict[EdgeType, StoredEdges] = {}
    for entry in read.get(manifest, "edges", list):
        edge_type = tuple(read.get(entry, "type", list))
        if len(edge_type) != 3 or not all(isinstance(name, str) for name in edge_type):
            raise read.wrong(f"an edge type as a list of three texts, got {entry['type']}")
        if edge_type[0] not in nodes or edge_type[2] not in nodes:
            raise GraphError(f"{path / MANIFEST}: expected edge types of node types {list(nodes)}, got {edge_type}.")
        read.once(edge_type, edges, "edge type")
        edges[edge_type] = read.edges(entry, nodes[edge_type[2]].count)
    is_homogeneous = read.get(manifest, "homogeneous", bool)
    if is_homogeneous and (list(nodes), list(edges)) != ([HOMOGENEOUS_NODE], [HOMOGENEOUS_EDGE]):
        raise GraphError(
            f"{path / MANIFEST}: expected one node type, {HOMOGENEOUS_NODE!r}, and one edge type, {HOMOGENEOUS_EDGE}, "
            f"of a homogeneous graph, got {list(nodes)} and {list(edges)}. Set 'homogeneous' to false."
        )
    return StoredGraph(path=path, is_homogeneous=is_homogeneous, nodes=nodes, edges=edges, others=read.others(manifest))


class _Reader:
    """Entries of a manifest -> rows, with every check that headers allow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._manifest = folder / MANIFEST

    def wrong(self, expected: str) -> InputError:
        return InputError(f"{self._manifest}: expected {expected}.")

    def get(self, entry: Any, key: str, kind: type) -> Any:
        value = entry.get(key) if isinstance(entry, dict) else None
        if not isinstance(value, kind) or (kind is int and not (type(value) is int and 0 <= value < 1 << 62)):
            raise self.wrong(f"'{key}' to be a {kind.__name__}, got {value!r}")
        return value

    def once(self, name: Any, known: Collection[Any], what: str) -> None:
        if name in known:
            raise self.wrong(f"each {what} once, got {name!r} twice")

    def only(self, entry: dict[str, Any], *keys: str) -> None:
        no_others(entry, keys, str(self._manifest))

    def rows(self, entry: Any, first: int | None = None) -> Rows:
        if isinstance(entry, str):
            entry = {"files": [entry]}
        names = self.get(entry, "files", list)
        if not all(isinstance(name, str) for name in names):
            raise self.wrong(f"names of files, got {names!r}")
        self.only(entry, "files", "name", "dtype", "shape", "crc32")
        paths = [inside(self._folder, name) for name in names]
        column = entry.get("name")
        columns = column if isinstance(column, list) else [] if column is None else [column]
        if not all(isinstance(name, str) for name in columns):
            raise self.wrong(f"the name of a tensor or column, got {column!r}")
        rows = open_rows(paths, name=column)
        got = {"dtype": dtype_name(rows.dtype), "shape": list(rows.shape)}
        for key, value in got.items():
            if entry.get(key, value) != value:
                raise InputError(
                    f"{paths[0]}: expected {key} {entry[key]}, as in {MANIFEST}, got {value}: the file has been "
                    "replaced, or belongs to another graph."
                )
        if first is not None and rows.num_rows != first:
            raise GraphError(f"{paths[0]}: expected {first} rows, got {rows.num_rows}.")
        sums = entry.get("crc32")
        if sums is None:
            return rows
        if not isinstance(sums, list) or len(sums) != len(rows.parts):
            raise self.wrong(f"one crc32 per part of {names}, got {sums!r}")
        return rows.expecting([check_sum("crc32", value, 8, self._manifest) for value in sums])

    def nodes(self, entry: Any) -> StoredNodes:
        self.only(entry, "type", "count", "tensors", "ids", "others")
        count = self.get(entry, "count", int)
        tensors = {name: self.rows(e, count) for name, e in self.get(entry, "tensors", dict).items()}
        ids = inside(self._folder, self.get(entry, "ids", str)) if "ids" in entry else None
        return StoredNodes(count=count, tensors=tensors, ids=ids, others=self.others(entry))

    def others(self, entry: Any) -> Others:
        found = self.get({"others": {}, **entry}, "others", dict)
        keys = ("tensors", "values", "node_ids")
        self.only(found, *keys)
        tensors, values, node_ids = (self.get({key: {}, **found}, key, dict) for key in keys)
        for name in (*tensors, *values):
            self.once(name, entry.get("tensors", ()), "name of a tensor or value")
        for name in values:
            self.once(name, tensors, "name of a tensor or value")
        rows = {name: self.rows(e) for name, e in tensors.items()}
        for name, types in node_ids.items():
            known = isinstance(types, list) and all(isinstance(t, str) for t in types) and name in rows
            if not known or len(types) not in (0, 1, rows[name].num_rows):
                raise self.wrong(
                    f"'node_ids' to have the node type of a tensor, or of each of its rows, got {types!r} for {name!r}"
                )
        return Others(tensors=rows, values=values, node_ids={name: tuple(types) for name, types in node_ids.items()})

    def edges(self, entry: Any, num_dst: int) -> StoredEdges:
        count = self.get(entry, "count", int)
        shapes = {"colptr": (num_dst + 1,), "row": (count,), "edge_index": (2, count)}
        self.only(entry, "type", "count", *shapes, "tensors", "transposed", "others")
        found = {name: self.rows(entry[name], shape[0]) for name, shape in shapes.items() if name in entry}
        if ("colptr" in found) != ("row" in found) or not found:
            raise self.wrong(
                f"the edges of {entry['type']} as 'colptr' and 'row', as 'edge_index', or both; got {list(found)}"
            )
        for name, rows in found.items():
            if rows.shape != shapes[name]:
                raise GraphError(f"{rows.paths[0]}: expected shape {list(shapes[name])}, got {list(rows.shape)}.")
            if rows.dtype not in INTEGERS:
                raise GraphError(f"{rows.paths[0]}: expected integers, got {rows.dtype}.")
        tensors = {name: self.rows(e, count) for name, e in self.get(entry, "tensors", dict).items()}
        transposed = self.get({"transposed": [], **entry}, "transposed", list)
        if not all(isinstance(name, str) and name in tensors for name in transposed):
            raise self.wrong(f"names of tensors of {entry['type']} as 'transposed', got {transposed!r}")
        return StoredEdges(
            count=count, tensors=tensors, transposed=frozenset(transposed), others=self.others(entry), **found
        )


def checksums(rows: Rows) -> list[str] | None:
    """Compute the CRC-32 of each file; ``None`` if a file is not a plain one."""
    sums = [part.crc32_of(None) for part in rows.parts if isinstance(part, FilePart)]
    return sums if len(sums) == len(rows.parts) else None
