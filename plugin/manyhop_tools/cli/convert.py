"""``manyhop convert``: reads a graph from files of other formats, and writes a folder for ``open()``."""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from manyhop.errors import InputError, MissingExtraError
from manyhop.files.dtypes import dtype_of_name
from manyhop.files.formats import open as open_rows
from manyhop.files.formats import read_raw
from manyhop.files.graph_writer import GraphWriter
from manyhop.files.rows import Rows
from manyhop.files.stored_graph import MANIFEST, StoredGraph, open_graph
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, NodeType
from manyhop.system.units import in_units, parse_bytes
from manyhop_tools.convert.edge_lists import EdgeLists, convert_edge_lists
from manyhop_tools.convert.ogb import convert_ogb, is_hetero_ogb, is_ogb
from manyhop_tools.convert.processed import Processed, is_processed
from manyhop_tools.convert.remote import address_in, fetch
from manyhop_tools.convert.renumber import Order, given_order, metis_order, renumber

_DATASET = "pyg:"
_FORMATS = "manyhop.formats"  # entry points of readers of the frameworks' files


@dataclass(frozen=True)
class Source:
    """A graph in files of another format."""

    is_homogeneous: bool
    """Whether it has one node type and one edge type without their own names."""
    write: Callable[[GraphWriter], None]
    """Writes all nodes and edges."""


def convert(args: argparse.Namespace) -> StoredGraph:
    """Convert the source of ``manyhop convert``.

    Raises:
        InputError: the source cannot be converted.
        OSError: a file cannot be read or written.
    """
    memory = None if args.memory is None else parse_bytes(args.memory)
    with _fetched(args) as args:
        raw = _raw(args)
        source = _source(args, raw)
        with GraphWriter(args.target, homogeneous=source.is_homogeneous, memory=memory, crc32=args.crc32) as writer:
            if isinstance(source, Source) and args.partition is None:
                source.write(writer)
            else:
                graph = source if isinstance(source, StoredGraph) else _read(source, writer.scratch(), memory)
                renumber(graph, writer, _order(graph, args.partition, raw), _report)
            return writer.finish()


@contextmanager
def _fetched(args: argparse.Namespace) -> Iterator[argparse.Namespace]:
    """Copy remote files, such as s3://bucket/edges.csv, to the disk of the target until the body ends."""
    if address_in(args.target):
        raise InputError(
            f"Expected a folder of this machine as the target, got {args.target}. Copy the folder after the conversion."
        )
    named = {name: getattr(args, name) or [] for name in ("source", "nodes", "node_tensor", "partition", "raw")}
    if not any(address_in(text) for texts in named.values() for text in texts):
        yield args
        return
    parent = next(path for path in Path(args.target).absolute().parents if path.exists())
    with tempfile.TemporaryDirectory(prefix=".manyhop-", dir=parent) as scratch:
        copies: dict[str, Path] = {}

        def local(text: str, after: str) -> str:
            address = address_in(text)
            if address is None:
                return text
            before = text.removesuffix(address)
            folder, slash, name = address.rpartition("/")
            name, mark, rest = name.partition(after) if after else (name, "", "")
            address = folder + slash + name
            if address not in copies:
                _report(f"{address}: is copied.")
                copies[address] = fetch(address, Path(scratch))
            return f"{before}{copies[address]}{mark}{rest}"

        marks = {"node_tensor": ":", "partition": ":", "raw": "="}  # separators after file names
        new = {name: [local(text, marks.get(name, "")) for text in texts] for name, texts in named.items()}
        yield argparse.Namespace(**{**vars(args), **{name: texts or None for name, texts in new.items()}})


def _report(text: str) -> None:
    print(text, file=sys.stderr)


def _source(args: argparse.Namespace, raw: Mapping[Path, Rows]) -> Source | StoredGraph:
    """Return a reader of the source, or a converted folder."""
    if len(args.source) == 1 and args.source[0].startswith(_DATASET):
        _refuse_others(args, edges=False, ogb=False)
        return _dataset(args.source[0].removeprefix(_DATASET), args.dataset_arg or [])
    paths = [Path(source) for source in args.source]
    typed = [_split_type(source) for source in args.source]
    saved = len(paths) == 1 and paths[0].suffix in (".pt", ".pth")
    stored = len(paths) == 1 and (paths[0] / MANIFEST).exists()
    processed = len(paths) == 1 and not stored and is_processed(paths[0])
    ogb = len(paths) == 1 and not stored and not processed and is_ogb(paths[0])
    _refuse_others(args, edges=not (saved or stored or processed or ogb), ogb=ogb)
    if stored:
        if args.partition is None:
            raise InputError(
                f"{paths[0]}: is a converted graph already. Copy it, or pass --partition to renumber its nodes."
            )
        return open_graph(paths[0])
    if saved:
        return _load_saved(paths[0])
    if ogb:
        hetero = is_hetero_ogb(paths[0])
        return Source(
            not hetero, partial(convert_ogb, paths[0], report=_report, both_ways=args.both_ways, split=args.split)
        )
    if processed:
        found = Processed(paths[0], _report)
        return Source(found.is_homogeneous, found.write)
    if len(paths) == 1 and paths[0].is_dir():
        raise InputError(
            f"Expected a folder of OGB (with raw/ in it), of MAG240M or IGB (with processed/ in it), or files, got the "
            f"folder {paths[0]}. Name its files: manyhop convert {paths[0]}/edges.csv {args.target} --nodes "
            f"{paths[0]}/nodes.csv, or SRC,REL,DST=FILE for each edge type."
        )
    if any(edge_type is None for edge_type, _ in typed) and any(edge_type is not None for edge_type, _ in typed):
        raise InputError("Expected SRC,REL,DST=FILE for all files or for none.")
    lists = _edge_lists(args, typed, raw)
    return Source(typed[0][0] is None, partial(convert_edge_lists, lists, report=_report))


def _read(source: Source, scratch: Path, memory: int | None) -> StoredGraph:
    """Return the graph of a source as a folder, to be numbered again."""
    with GraphWriter(scratch / "graph", homogeneous=source.is_homogeneous, memory=memory) as writer:
        source.write(writer)
        return writer.finish()


def _order(graph: StoredGraph, partition: Sequence[str], raw: Mapping[Path, Rows]) -> Order:
    """Numbers of the nodes by the values of --partition."""
    if len(partition) == 1 and partition[0].isdigit():
        return metis_order(graph, int(partition[0]), _report)
    given: dict[NodeType, Rows] = {}
    for text in partition:
        name, equals, path = text.rpartition("=")
        if bool(equals) == graph.is_homogeneous or not path or bool(name) != bool(equals) or text.isdigit():
            hint = "FILE" if graph.is_homogeneous else "TYPE=FILE"
            raise InputError(f"Expected --partition N, once, or --partition {hint}, got '{text}'.")
        if (name or HOMOGENEOUS_NODE) in given:
            raise InputError(f"Expected --partition once per node type, got '{text}' in addition.")
        given[name or HOMOGENEOUS_NODE] = _open(path, raw)
    return given_order(graph, given, _report)


def _refuse_others(args: argparse.Namespace, *, edges: bool, ogb: bool) -> None:
    """Raise InputError for options that would have no effect."""
    of_edges = "src dst edge_columns no_header delimiter ids num_nodes node_tensor nodes node_id"
    names = [] if edges else of_edges.split()
    names += [] if edges or ogb else ["both_ways"]
    names += [] if ogb else ["split"]
    names += [] if args.source[0].startswith(_DATASET) else ["dataset_arg"]
    for name in names:
        if getattr(args, name):
            raise InputError(f"--{name.replace('_', '-')} has no meaning for {args.source[0]}: leave it out.")


def _edge_lists(
    args: argparse.Namespace, typed: Sequence[tuple[EdgeType | None, Path]], raw: Mapping[Path, Rows]
) -> EdgeLists:
    hetero = typed[0][0] is not None
    num_nodes: dict[NodeType, int] = {}
    for text in args.num_nodes or []:
        name, _, number = text.rpartition("=")
        if not number.isdigit() or bool(name) != hetero:
            raise InputError(f"Expected --num-nodes {'TYPE=' if hetero else ''}N, got '{text}'.")
        num_nodes[name or HOMOGENEOUS_NODE] = int(number)
    tensors: dict[NodeType, dict[str, Rows]] = {}
    for text in args.node_tensor or []:
        name, equals, path = text.partition("=")
        node_type, dot, name = name.rpartition(".") if hetero else (HOMOGENEOUS_NODE, ".", name)
        if not (equals and path and dot and node_type and name):
            raise InputError(f"Expected --node-tensor {'TYPE.' if hetero else ''}NAME=FILE, got '{text}'.")
        tensors.setdefault(node_type, {})[name] = _open(path, raw)
    tables: dict[NodeType, Path] = {}
    for text in args.nodes or []:
        name, equals, path = text.rpartition("=")
        if bool(equals) != hetero or not path or bool(name) != hetero or (name or HOMOGENEOUS_NODE) in tables:
            raise InputError(f"Expected --nodes {'TYPE=' if hetero else ''}FILE, once per node type, got '{text}'.")
        tables[name or HOMOGENEOUS_NODE] = Path(path)
    if args.node_id and not tables:
        raise InputError("Expected --node-id only with --nodes: leave it out.")
    return EdgeLists(
        sources=[(edge_type or HOMOGENEOUS_EDGE, path) for edge_type, path in typed],
        src=args.src,
        dst=args.dst,
        columns=args.edge_columns.split(",") if args.edge_columns else (),
        header=not args.no_header,
        delimiter=args.delimiter,
        ids=args.ids or "auto",
        both_ways=args.both_ways,
        num_nodes=num_nodes,
        node_tensors=tensors,
        node_tables=tables,
        node_id=args.node_id,
        raw=raw,
    )


def _split_type(source: str) -> tuple[EdgeType | None, Path]:
    """Return the edge type and path of ``author,writes,paper=edges.csv``."""
    types, equals, path = source.partition("=")
    names = types.split(",")
    if not equals or len(names) != 3 or not all(names):
        return None, Path(source)
    return (names[0], names[1], names[2]), Path(path)


def _open(text: str, raw: Mapping[Path, Rows]) -> Rows:
    """Open ``x.npy``, ``nodes.parquet:x`` or a raw file."""
    if Path(text) in raw:
        return raw[Path(text)]
    path, colon, name = text.rpartition(":")
    return open_rows(path, name=name) if colon and not Path(text).exists() else open_rows(text)


def _raw(args: argparse.Namespace) -> dict[Path, Rows]:
    """Return raw files by the values of --raw."""
    found: dict[Path, Rows] = {}
    for text in args.raw or []:
        path, _, kind = text.rpartition("=")
        name, comma, width = kind.partition(",")
        if not path or (comma and not (width.isdigit() and int(width))):
            raise InputError(f"Expected --raw FILE=DTYPE or FILE=DTYPE,WIDTH, got '{text}'.")
        found[Path(path)] = read_raw(Path(path), dtype_of_name(name, "--raw"), int(width) if comma else None)
    values = [value for name in ("source", "node_tensor", "partition") for value in getattr(args, name) or []]
    for unused in found:
        if not any(value.rpartition("=")[2] == str(unused) for value in values):
            raise InputError(f"Expected --raw for a file that another argument names, got '{unused}'.")
    return found


class SavedGraph(Protocol):
    """A graph of a framework's own, as its adapter reads it."""

    homogeneous: bool

    def write(self, writer: GraphWriter) -> None:
        """Write all nodes and edges."""


def _load_saved(path: Path) -> Source:
    data: SavedGraph = _adapter("saved", f"Reading {path}")(path)
    return Source(data.homogeneous, data.write)


def _dataset(name: str, texts: Sequence[str]) -> Source:
    """Return a data set by the name of its class."""
    arguments: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key.isidentifier() and equals) or key in arguments:
            raise InputError(f"Expected --dataset-arg NAME=VALUE, each name once, got '{text}'.")
        try:
            arguments[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            arguments[key] = value  # a text needs no quotes
    data: SavedGraph = _adapter("dataset", f"The data set '{name}'")(name, arguments)
    return Source(data.homogeneous, data.write)


def _adapter(kind: str, purpose: str) -> Callable[..., SavedGraph]:
    """Return an adapter's reader for a kind of source."""
    found = entry_points(group=_FORMATS, name=kind)
    if not found:
        raise MissingExtraError("manyhop", "pyg", f"{purpose} (its entry point '{kind}' of '{_FORMATS}')")
    try:
        load: Callable[..., SavedGraph] = next(iter(found)).load()
    except ImportError:
        raise MissingExtraError("torch_geometric", "pyg", purpose) from None
    return load


def summary(graph: StoredGraph) -> str:
    """Return the sizes of a graph on disk, as text."""
    nodes = sum(stored.count for stored in graph.nodes.values())
    edges = sum(stored.count for stored in graph.edges.values())
    lines = [f"{graph.path}: {nodes} nodes, {edges} edges; topology {in_units(graph.topology_bytes)}"]
    for name, rows in graph.features():
        lines.append(f"  {name}  {list(rows.shape)} {str(rows.dtype).removeprefix('torch.')}  {in_units(rows.nbytes)}")
    path = str(graph.path)
    return "\n".join([*lines, f"Open it with manyhop_pyg.open({path!r}) or manyhop_dgl.Graph.open({path!r})."])
