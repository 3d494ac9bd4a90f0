"""Node and link property prediction data sets of the Open Graph Benchmark, as downloaded -> a graph on disk."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.files.formats import open as open_rows
from manyhop.files.graph_writer import GraphWriter, NodeIds
from manyhop.files.rows import Rows
from manyhop.files.saved_tensors import load_plain, mask_of
from manyhop.files.sort import EdgeSorter, Kind
from manyhop.files.tables import Table
from manyhop.files.tensor_file import write_manifest
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, NodeType
from manyhop.system.arrays import bytes_of
from manyhop_tools.convert.edge_lists import EdgeIndexFile

_PARTS = {"train": "train", "val": "valid", "test": "test"}
_NODES = {
    "edge", "edge_neg", "source_node", "target_node", "target_node_neg", "head", "tail", "head_neg", "tail_neg",
}  # fmt: skip
_WHOLE = "split_dict.pt"  # all parts in one file, which OGB prefers


def has_link_split(folder: Path) -> bool:
    """Return whether a folder of ``split/`` contains links."""
    return (folder / _WHOLE).exists() or (folder / "train.pt").exists()


def link_split(folder: Path, node_types: Collection[NodeType]) -> dict[str, Any]:
    """Read a split of links.

    Args:
        folder: of the split.
        node_types: of the graph, in order.

    Returns:
        Attributes of the graph: ``train_edge [n, 2]``, ``val_edge_neg``, ... with OGB's names. Node types
        (``train_head_type``) are their positions among ``node_types``.

    Raises:
        InputError: a file that is missing or not as expected.
    """
    whole = load_plain(folder / _WHOLE) if (folder / _WHOLE).exists() else None
    found: dict[str, Any] = {}
    for ours, theirs in _PARTS.items():
        path = folder / (f"{theirs}.pt" if whole is None else _WHOLE)
        part = load_plain(path) if whole is None else whole.get(theirs) if isinstance(whole, dict) else None
        if not isinstance(part, dict):
            raise InputError(f"{path}: expected a dictionary of tensors for '{theirs}', got {type(part).__name__}.")
        for name, value in part.items():
            if name.endswith("_type") and isinstance(value, list):
                value = _positions(value, list(node_types), f"{path}, '{name}'")
            elif name in _NODES and isinstance(value, Tensor):
                value = NodeIds(value.long(), tuple(node_types) if len(node_types) == 1 else ())
            found[f"{ours}_{name}"] = value
    return found


def _positions(names: list[Any], node_types: list[NodeType], where: str) -> Tensor:
    position = {name: k for k, name in enumerate(node_types)}
    for name in set(names):
        if name not in position:
            raise InputError(f"{where}: expected node types of {node_types}, got {name!r}.")
    return torch.tensor([position[name] for name in names])


_NAMES = {
    "node-feat": "x",
    "node_feat": "x",
    "edge-feat": "edge_attr",
    "edge_feat": "edge_attr",
    "species": "node_species",
}


def is_ogb(folder: Path) -> bool:
    """Return whether it is the folder of such a data set: with ``raw/`` and ``split/``, or at least ``raw/``."""
    return (folder / "raw").is_dir()


def is_hetero_ogb(folder: Path) -> bool:
    """Return whether the data set has several node or edge types."""
    return (folder / "raw" / "triplet-type-list.csv.gz").exists()


def convert_ogb(
    folder: Path, writer: GraphWriter, report: Callable[[str], None], *, both_ways: bool, split: str | None
) -> None:
    """Write the graph: features ``x``, labels ``y``, ``edge_attr``, masks of the split; other files keep their names.

    Splits of links belong to the graph as a whole: :func:`link_split`.

    Raises:
        InputError: files that are missing or not as expected.
    """
    source = _Source(folder, writer.scratch())
    hetero = is_hetero_ogb(folder)
    counts, edge_types = _types(source) if hetero else ({HOMOGENEOUS_NODE: source.num_nodes()}, [HOMOGENEOUS_EDGE])
    if both_ways and any(src != dst for src, _, dst in edge_types):
        raise InputError("Edges can be added in the other direction only if both ends are of the same node type.")
    chosen = _split_folder(folder, split, report)
    of_links = chosen is not None and has_link_split(chosen)
    for node_type, count in counts.items():
        inner = node_type if hetero else ""
        tensors: dict[str, Tensor | Rows] = dict(source.tensors(Path("node-feat", inner) if hetero else Path(), "node"))
        label = source.tensor(Path("node-label", inner, "node-label") if hetero else Path("node-label"), "node_label")
        if label is not None:
            tensors["y"] = label
        if chosen is not None and not of_links:
            tensors |= _masks(chosen / inner, count)
        writer.add_nodes(node_type, count, tensors)
    for edge_type in edge_types:
        inner_path = Path("relations", "___".join(edge_type)) if hetero else Path()
        columns = source.tensors(inner_path, "edge")
        kinds: dict[str, Kind] = {name: (rows.dtype, rows.shape[1:]) for name, rows in columns.items()}
        sorter = writer.sorter(kinds)
        _add_edges(sorter, source.edges(inner_path), columns, both_ways=both_ways)
        writer.add_sorted(edge_type, sorter, counts[edge_type[0]], counts[edge_type[2]])
    if chosen is not None and of_links:
        writer.add_others(link_split(chosen, counts))


class _Source:
    """Tensors of a data set by their names, from .csv.gz files or from ``data.npz``."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self._raw, self._scratch = folder / "raw", scratch
        self._count = 0
        archive = self._raw / "data.npz"
        self._members = _members(archive) if archive.exists() else None

    def num_nodes(self) -> int:
        """Number of nodes of a homogeneous graph."""
        if self._members is not None:
            counts = self._extract(self._raw / "data.npz", "num_nodes_list").read().view(-1).tolist()
        else:
            counts = torch.cat(list(self.table(Path("num-node-list")).matrix())).view(-1).tolist()
        if len(counts) != 1:
            raise InputError(
                f"{self._raw}: expected one graph, got {len(counts)}: only data sets of one graph are read."
            )
        return int(counts[0])

    def table(self, name: Path, *, header: bool = False) -> Table:
        """Return a file of ``raw/``."""
        path = self._raw / name.parent / f"{name.name}.csv"
        return Table(path=path if path.exists() else path.with_name(path.name + ".gz"), header=header)

    def tensors(self, folder: Path, kind: str) -> dict[str, Rows]:
        """Return all tensors of nodes, or of edges: ``[count, ...]``."""
        found = {}
        if self._members is not None:
            for name in self._members:
                if name.startswith(f"{kind}_") and name != "edge_index":
                    found[_NAMES.get(name, name)] = self._extract(self._raw / "data.npz", name)
            return found
        for path in sorted((self._raw / folder).glob("*.csv*")):
            name = path.name.split(".")[0]
            kept = name == f"{kind}-feat" or name.startswith(f"{kind}_") or (name == "species" and kind == "node")
            if kept and path.name in (f"{name}.csv", f"{name}.csv.gz"):
                found[_NAMES.get(name, name)] = self._matrix(Table(path=path, header=False), name.endswith("-feat"))
        return found

    def tensor(self, name: Path, key: str) -> Rows | None:
        """Return one tensor, from ``name.csv.gz`` or ``name.npz``; ``None`` if neither exists."""
        archive = self._raw / name.parent / f"{name.name}.npz"
        if archive.exists():
            rows = self._extract(archive, key)
        elif self.table(name).path.exists():
            rows = self._matrix(self.table(name), False)
        else:
            return None
        if len(rows.shape) == 2 and rows.shape[1] == 1:
            return rows.flat()
        return rows

    def edges(self, folder: Path) -> Iterator[Tensor]:
        """Yield edges in pieces, ``[n, 2] int64``."""
        if self._members is None:
            for piece in self.table(folder / "edge").matrix():
                if piece.dtype != torch.int64 or piece.shape[1] != 2:
                    raise InputError(f"{self._raw / folder}: expected two columns of integers as edges.")
                yield piece
            return
        edges = EdgeIndexFile(self._copy(self._raw / "data.npz", "edge_index"))
        yield from (torch.stack(piece, 1) for piece in edges.pieces())

    def _matrix(self, table: Table, wide: bool) -> Rows:
        """Return a CSV file as a file of numbers; one column as a vector unless ``wide``."""
        path = self._new(".bin")
        count, width, dtype = 0, 0, torch.int64
        with path.open("wb") as file:
            for piece in table.matrix():
                file.write(bytes_of(piece))
                count, width, dtype = count + piece.shape[0], piece.shape[1], piece.dtype
        if not count:
            raise InputError(f"{table.path}: has no rows.")
        write_manifest(path, (count, width) if wide or width > 1 else (count,), dtype)
        return open_rows(path)

    def _extract(self, archive: Path, name: str) -> Rows:
        return open_rows(self._copy(archive, name))

    def _copy(self, archive: Path, name: str) -> Path:
        """Copy a member out of a .npz file. Never unpickled: it is then opened as any .npy file."""
        if name not in _members(archive):
            raise InputError(f"{archive}: expected an array '{name}', got {_members(archive)}.")
        path = self._new(".npy")
        with zipfile.ZipFile(archive) as zipped, zipped.open(f"{name}.npy") as member, path.open("wb") as file:
            shutil.copyfileobj(member, file, 1 << 24)
        return path

    def _new(self, ending: str) -> Path:
        self._count += 1
        return self._scratch / f"{self._count}{ending}"


def _members(archive: Path) -> list[str]:
    try:
        with zipfile.ZipFile(archive) as zipped:
            return [name.removesuffix(".npy") for name in zipped.namelist()]
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{archive}: not a .npz file: {error}.") from error


def _types(source: _Source) -> tuple[dict[NodeType, int], list[EdgeType]]:
    """Numbers of nodes by type, and edge types, both in alphabetical order."""
    table = source.table(Path("num-node-dict"), header=True)
    names = table.columns()
    (counts,) = ([int(column[0].as_py()) for column in batch] for batch in table.read(names))
    triplets = source.table(Path("triplet-type-list"))
    edge_types = [
        (src.as_py(), rel.as_py(), dst.as_py())
        for arrays in triplets.read(triplets.columns())
        for src, rel, dst in zip(*arrays, strict=True)
    ]
    return dict(sorted(zip(names, counts, strict=True))), sorted(edge_types)


def _add_edges(sorter: EdgeSorter, edges: Iterator[Tensor], columns: dict[str, Rows], *, both_ways: bool) -> None:
    position = 0
    for piece in edges:
        after = position + piece.shape[0]
        values = {}
        for name, rows in columns.items():
            if after > rows.num_rows:
                raise InputError(f"Expected '{name}' to have a row for each edge, got {rows.num_rows} rows.")
            values[name] = rows.read(position, after)
        position = after
        src, dst = piece.unbind(1)
        if both_ways:
            src, dst = piece.reshape(-1), piece.flip(1).reshape(-1)
            values = {name: v.repeat_interleave(2, 0) for name, v in values.items()}
        sorter.add(src.contiguous(), dst.contiguous(), values)
    for name, rows in columns.items():
        if rows.num_rows != position:
            raise InputError(f"Expected '{name}' to have {position} rows, one per edge, got {rows.num_rows}.")


def _split_folder(folder: Path, split: str | None, report: Callable[[str], None]) -> Path | None:
    """Return the folder of the split that is requested, or the only one."""
    found = sorted(path for path in (folder / "split").glob("*") if path.is_dir())
    names = [path.name for path in found]
    if split is None and len(found) > 1:
        raise InputError(f"{folder}: has several splits: choose with --split, one of {names}.")
    if split is not None and split not in names:
        raise InputError(f"{folder}: expected a split of {names}, got '{split}'.")
    if not found:
        report(f"{folder}: has no split/, so the graph will have no masks.")
        return None
    return folder / "split" / (split or names[0])


def _masks(folder: Path, count: int) -> dict[str, Tensor]:
    """Return ``train_mask``, ``val_mask`` and ``test_mask``, or nothing for a node type without a split."""
    masks = {}
    for ours, theirs in (("train", "train"), ("val", "valid"), ("test", "test")):
        path = folder / f"{theirs}.csv"
        path = path if path.exists() else path.with_name(path.name + ".gz")
        if not path.exists():
            continue
        columns = Table(path=path, header=False).read(["0"], dtype="int64")
        ids = [torch.from_numpy(array.to_numpy(zero_copy_only=False).copy()) for (array,) in columns]
        masks[f"{ours}_mask"] = mask_of(torch.cat(ids) if ids else torch.empty(0).long(), count, str(path))
    return masks
