"""``manyhop convert``: reads a graph from files of other formats, and writes a folder for ``open()``."""

from __future__ import annotations

import argparse
import ast
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from manyhop.errors import InputError, MissingExtraError
from manyhop.files.dtypes import dtype_of_name
from manyhop.files.formats import open as open_rows
from manyhop.files.formats import read_raw
from manyhop.files.graph_writer import GraphWriter
from manyhop.files.rows import Rows
from manyhop.files.stored_graph import MANIFEST, StoredGraph, open_graph
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, NodeType
from manyhop.system.units import in_units, parse_bytes
from manyhop_tools.convert.edge_lists import EdgeLists
from manyhop_tools.convert.ogb import OGB, is_ogb
from manyhop_tools.convert.processed import Processed, is_processed
from manyhop_tools.convert.remote import Copies, has_address
from manyhop_tools.convert.renumber import Order, given_order, metis_order, renumber
from manyhop_tools.convert.source import Source

_DATASET = "pyg:"
_FORMATS = "manyhop.formats"  # entry points of readers of the frameworks' files
_REMOTE = {"source": "", "nodes": "", "node_tensor": ":", "partition": ":", "raw": "="}  # what ends an address


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
        homogeneous = source.is_homogeneous if isinstance(source, StoredGraph) else source.homogeneous
        with GraphWriter(args.target, homogeneous=homogeneous, memory=memory, crc32=args.crc32) as writer:
            if not isinstance(source, StoredGraph) and args.partition is None:
                source.write(writer)
            else:
                graph = source if isinstance(source, StoredGraph) else _read(source, writer.scratch(), memory)
                renumber(graph, writer, _order(graph, args.partition, raw))
            return writer.finish()


@contextmanager
def _fetched(args: argparse.Namespace) -> Iterator[argparse.Namespace]:
    """Copy remote files, such as s3://bucket/edges.csv, to the disk of the target until the body ends."""
    if has_address(args.target):
        raise InputError(
            f"Expected a folder of this machine as the target, got {args.target}. Copy the folder after the conversion."
        )
    named = {name: getattr(args, name) or [] for name in _REMOTE}
    if not any(has_address(text) for texts in named.values() for text in texts):
        yield args
        return
    parent = next(path for path in Path(args.target).absolute().parents if path.exists())
    with tempfile.TemporaryDirectory(prefix=".manyhop-", dir=parent) as scratch:
        copies = Copies(Path(scratch))
        new = {name: [copies.local(text, _REMOTE[name]) for text in texts] or None for name, texts in named.items()}
        yield argparse.Namespace(**{**vars(args), **new})


def _source(args: argparse.Namespace, raw: Mapping[Path, Rows]) -> Source | StoredGraph:
    """Return a reader of the source, or a converted folder."""
    if len(args.source) == 1 and args.source[0].startswith(_DATASET):
        _refuse_others(args, edges=False, ogb=False)
        return _dataset(args.source[0].removeprefix(_DATASET), args.dataset_arg or [])
    path = Path(args.source[0])
    alone = len(args.source) == 1
    saved = alone and path.suffix in (".pt", ".pth")
    stored = alone and (path / MANIFEST).exists()
    processed = alone and not stored and is_processed(path)
    ogb = alone and not stored and not processed and is_ogb(path)
    _refuse_others(args, edges=not (saved or stored or processed or ogb), ogb=ogb)
    if stored:
        if args.partition is None:
            raise InputError(
                f"{path}: is a converted graph already. Copy it, or pass --partition to renumber its nodes."
            )
        return open_graph(path)
    if saved:
        return _adapter("saved", f"Reading {path}")(path)
    if ogb:
        return OGB(path, args.both_ways, args.split)
    if processed:
        return Processed(path)
    if alone and path.is_dir():
        raise InputError(
            f"Expected a folder of OGB (with raw/ in it), of MAG240M or IGB (with processed/ in it), or files, got the "
            f"folder {path}. Name its files: manyhop convert {path}/edges.csv {args.target} --nodes {path}/nodes.csv, "
            "or SRC,REL,DST=FILE for each edge type."
        )
    return _edge_lists(args, raw)


def _read(source: Source, scratch: Path, memory: int | None) -> StoredGraph:
    """Return the graph of a source as a folder, to be numbered again."""
    with GraphWriter(scratch / "graph", homogeneous=source.homogeneous, memory=memory) as writer:
        source.write(writer)
        return writer.finish()


def _order(graph: StoredGraph, partition: Sequence[str], raw: Mapping[Path, Rows]) -> Order:
    """Numbers of the nodes by the values of --partition."""
    if len(partition) == 1 and partition[0].isdigit():
        return metis_order(graph, int(partition[0]))
    given = _by_type(partition, "--partition N, once, or --partition", "FILE", typed=not graph.is_homogeneous)
    return given_order(graph, {name: _open(path, raw) for name, path in given.items()})


def _by_type(texts: Sequence[str] | None, option: str, value: str, *, typed: bool) -> dict[NodeType, str]:
    """Return what ``TYPE=VALUE`` gives for each node type; without types, what ``VALUE`` gives for the only one."""
    found: dict[NodeType, str] = {}
    for text in texts or []:
        name, equals, rest = text.rpartition("=") if typed else (HOMOGENEOUS_NODE, "=", text)
        if not (name and equals and rest) or name in found or (not typed and "=" in text):
            hint = f"{option} {'TYPE=' if typed else ''}{value}"
            raise InputError(f"Expected {hint}, once per node type, got '{text}'.")
        found[name] = rest
    return found


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


def _edge_lists(args: argparse.Namespace, raw: Mapping[Path, Rows]) -> EdgeLists:
    files = [_split_type(source) for source in args.source]
    typed = files[0][0] != HOMOGENEOUS_EDGE
    if any((edge_type != HOMOGENEOUS_EDGE) != typed for edge_type, _ in files):
        raise InputError("Expected SRC,REL,DST=FILE for all files or for none.")
    num_nodes = _by_type(args.num_nodes, "--num-nodes", "N", typed=typed)
    for number in num_nodes.values():
        if not number.isdigit():
            raise InputError(f"Expected --num-nodes {'TYPE=' if typed else ''}N, got '{number}'.")
    tensors: dict[NodeType, dict[str, Rows]] = {}
    for text in args.node_tensor or []:
        name, equals, path = text.partition("=")
        node_type, dot, name = name.rpartition(".") if typed else (HOMOGENEOUS_NODE, ".", name)
        if not (equals and path and dot and node_type and name):
            raise InputError(f"Expected --node-tensor {'TYPE.' if typed else ''}NAME=FILE, got '{text}'.")
        tensors.setdefault(node_type, {})[name] = _open(path, raw)
    tables = _by_type(args.nodes, "--nodes", "FILE", typed=typed)
    if args.node_id and not tables:
        raise InputError("Expected --node-id only with --nodes: leave it out.")
    return EdgeLists(
        options=args,
        files=files,
        num_nodes={name: int(number) for name, number in num_nodes.items()},
        node_tensors=tensors,
        node_tables={name: Path(path) for name, path in tables.items()},
        raw=raw,
    )


def _split_type(source: str) -> tuple[EdgeType, Path]:
    """Return the edge type and path of ``author,writes,paper=edges.csv``, or of ``edges.csv``."""
    types, equals, path = source.partition("=")
    names = types.split(",")
    if not equals or len(names) != 3 or not all(names):
        return HOMOGENEOUS_EDGE, Path(source)
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
    return _adapter("dataset", f"The data set '{name}'")(name, arguments)


def _adapter(kind: str, purpose: str) -> Callable[..., Source]:
    """Return an adapter's reader for a kind of source."""
    found = entry_points(group=_FORMATS, name=kind)
    if not found:
        raise MissingExtraError("manyhop", "pyg", f"{purpose} (its entry point '{kind}' of '{_FORMATS}')")
    try:
        load: Callable[..., Source] = next(iter(found)).load()
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
