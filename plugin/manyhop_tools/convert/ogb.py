"""Node and link property prediction data sets of the Open Graph Benchmark, as downloaded -> a graph on disk."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

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
from manyhop_tools.convert.source import both_ways, check_both_ways, report

EdgePiece: TypeAlias = tuple[Tensor, Tensor]

_PARTS = {"train": "train", "val": "valid", "test": "test"}
_NODES = {
    "edge", "edge_neg", "source_node", "target_node", "target_node_neg", "head", "tail", "head_neg", "tail_neg",
}  # fmt: skip
_WHOLE = "split_dict.pt"  # all parts in one file, which OGB prefers

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


@dataclass(frozen=True)
class OGB:
    """A data set: features ``x``, labels ``y``, ``edge_attr``, masks of the split; other files keep their names.

    A split of links becomes attributes of the graph with OGB's names: ``train_edge [n, 2]``, ``val_edge_neg``, ...
    Node types (``train_head_type``) are their positions among the node types.
    """

    folder: Path
    both_ways: bool
    """Whether each edge is also added in the other direction."""
    split: str | None
    """Name of the split; ``None``: the only one."""

    @property
    def homogeneous(self) -> bool:
        """Return whether the data set has one node type and one edge type."""
        return not (self.folder / "raw" / "triplet-type-list.csv.gz").exists()

    def write(self, writer: GraphWriter) -> None:
        """Write the graph."""
        source = _Source(self.folder, writer.scratch())
        typed = not self.homogeneous
        counts, edge_types = (
            _types(self.folder / "raw") if typed else ({HOMOGENEOUS_NODE: source.num_nodes()}, [HOMOGENEOUS_EDGE])
        )
        if self.both_ways:
            check_both_ways(edge_types)
        split = self._split_folder()
        of_links = split is not None and ((split / _WHOLE).exists() or (split / "train.pt").exists())
        for node_type, count in counts.items():
            inner = node_type if typed else ""
            tensors: dict[str, Tensor | Rows] = {
                **source.tensors(Path("node-feat", inner) if typed else Path(), "node")
            }
            tensors |= source.labels(Path("node-label", inner, "node-label" if typed else ""))
            if split is not None and not of_links:
                tensors |= _masks(split / inner, count)
            writer.add_nodes(node_type, count, tensors)
        for edge_type in edge_types:
            inner_path = Path("relations", "___".join(edge_type)) if typed else Path()
            columns = source.tensors(inner_path, "edge")
            kinds: dict[str, Kind] = {name: (rows.dtype, rows.shape[1:]) for name, rows in columns.items()}
            sorter = writer.sorter(kinds)
            self._add_edges(sorter, source.edges(inner_path), columns)
            writer.add_sorted(edge_type, sorter, counts[edge_type[0]], counts[edge_type[2]])
        if split is not None and of_links:
            writer.add_others(_links(split, list(counts)))

    def _split_folder(self) -> Path | None:
        """Return the folder of the split that is requested, or the only one."""
        names = sorted(path.name for path in (self.folder / "split").glob("*") if path.is_dir())
        if self.split is None and len(names) > 1:
            raise InputError(f"{self.folder}: has several splits: choose with --split, one of {names}.")
        if self.split is not None and self.split not in names:
            raise InputError(f"{self.folder}: expected a split of {names}, got '{self.split}'.")
        if not names:
            report(f"{self.folder}: has no split/, so the graph will have no masks.")
            return None
        return self.folder / "split" / (self.split or names[0])

    def _add_edges(self, sorter: EdgeSorter, edges: Iterator[EdgePiece], columns: Mapping[str, Rows]) -> None:
        position = 0
        for src, dst in edges:
            after = position + len(src)
            values = {}
            for name, rows in columns.items():
                if after > rows.num_rows:
                    raise InputError(f"Expected '{name}' to have a row for each edge, got {rows.num_rows} rows.")
                values[name] = rows.read(position, after)
            position = after
            sorter.add(*both_ways(src, dst, values) if self.both_ways else (src, dst, values))
        for name, rows in columns.items():
            if rows.num_rows != position:
                raise InputError(f"Expected '{name}' to have {position} rows, one per edge, got {rows.num_rows}.")


def _links(folder: Path, node_types: list[NodeType]) -> dict[str, Any]:
    """Read a split of links: attributes of the graph."""
    whole = load_plain(folder / _WHOLE) if (folder / _WHOLE).exists() else None
    found: dict[str, Any] = {}
    for ours, theirs in _PARTS.items():
        path = folder / (f"{theirs}.pt" if whole is None else _WHOLE)
        part = load_plain(path) if whole is None else whole.get(theirs) if isinstance(whole, dict) else None
        if not isinstance(part, dict):
            raise InputError(f"{path}: expected a dictionary of tensors for '{theirs}', got {type(part).__name__}.")
        for name, value in part.items():
            if name.endswith("_type") and isinstance(value, list):
                for unknown in set(value) - set(node_types):
                    raise InputError(f"{path}, '{name}': expected node types of {node_types}, got {unknown!r}.")
                value = torch.tensor([node_types.index(node_type) for node_type in value])
            elif name in _NODES and isinstance(value, Tensor):
                value = NodeIds(value.long(), tuple(node_types) if len(node_types) == 1 else ())
            found[f"{ours}_{name}"] = value
    return found


def _masks(folder: Path, count: int) -> dict[str, Tensor]:
    """Return ``train_mask``, ``val_mask`` and ``test_mask``, or nothing for a node type without a split."""
    masks = {}
    for ours, theirs in _PARTS.items():
        table = _table(folder / theirs)
        if table.path.exists():
            ids = [
                torch.from_numpy(ids.to_numpy(zero_copy_only=False).copy())
                for (ids,) in table.read(["0"], dtype="int64")
            ]
            masks[f"{ours}_mask"] = mask_of(torch.cat(ids) if ids else torch.empty(0).long(), count, str(table.path))
    return masks


def _table(path: Path, *, header: bool = False) -> Table:
    """Return the table ``path.csv`` or ``path.csv.gz``."""
    plain = path.with_name(f"{path.name}.csv")
    return Table(path=plain if plain.exists() else plain.with_name(f"{plain.name}.gz"), header=header)


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
            counts = torch.cat(list(_table(self._raw / "num-node-list").matrix())).view(-1).tolist()
        if len(counts) != 1:
            raise InputError(
                f"{self._raw}: expected one graph, got {len(counts)}: only data sets of one graph are read."
            )
        return int(counts[0])

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

    def labels(self, name: Path) -> dict[str, Rows]:
        """Return the labels ``y`` in ``name.npz`` or ``name.csv.gz``, if either exists."""
        archive, table = self._raw / f"{name}.npz", _table(self._raw / name)
        if not archive.exists() and not table.path.exists():
            return {}
        rows = self._extract(archive, "node_label") if archive.exists() else self._matrix(table, False)
        return {"y": rows.flat() if rows.shape[1:] == (1,) else rows}

    def edges(self, folder: Path) -> Iterator[EdgePiece]:
        """Yield sources and destinations, ``[n] int64``, of some edges at a time."""
        if self._members is not None:
            yield from EdgeIndexFile(self._copy(self._raw / "data.npz", "edge_index")).pieces()
            return
        for piece in _table(self._raw / folder / "edge").matrix():
            if piece.dtype != torch.int64 or piece.shape[1] != 2:
                raise InputError(f"{self._raw / folder}: expected two columns of integers as edges.")
            yield piece[:, 0].contiguous(), piece[:, 1].contiguous()

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


def _types(raw: Path) -> tuple[dict[NodeType, int], list[EdgeType]]:
    """Numbers of nodes by type, and edge types, both in alphabetical order."""
    table = _table(raw / "num-node-dict", header=True)
    names = table.columns()
    (counts,) = ([int(column[0].as_py()) for column in batch] for batch in table.read(names))
    triplets = _table(raw / "triplet-type-list")
    edge_types = [
        (src.as_py(), rel.as_py(), dst.as_py())
        for arrays in triplets.read(triplets.columns())
        for src, rel, dst in zip(*arrays, strict=True)
    ]
    return dict(sorted(zip(names, counts, strict=True))), sorted(edge_types)
