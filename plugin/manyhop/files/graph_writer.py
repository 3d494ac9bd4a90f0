"""Write a graph into a folder, piece by piece."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from manyhop.arguments import flags, path_of
from manyhop.errors import GraphError, InputError
from manyhop.files.dtypes import dtype_name, numpy_dtype
from manyhop.files.formats import MOST_LEVELS, within_levels
from manyhop.files.formats import open as open_rows
from manyhop.files.ids import SourceIds
from manyhop.files.rows import Rows
from manyhop.files.sort import EdgeSorter, Kind
from manyhop.files.stored_graph import FORMAT, MANIFEST, VERSION, StoredGraph, checksums, open_graph
from manyhop.files.tensor_file import unfinished, write, writing
from manyhop.graph import EdgeType, NodeType
from manyhop.system.memory import available_memory
from manyhop.system.progress import Progress

EdgePiece = tuple[Tensor, Tensor, Mapping[str, Tensor]]
"""Some edges: sources ``[n] int64``, destinations ``[n] int64``, and tensors of the edges by name: ``[n, ...]``."""

_PIECE = 1 << 20  # edges that are read from a tensor at once


@dataclass(frozen=True)
class NodeIds:
    """A tensor whose numbers are nodes, which change where nodes are numbered again."""

    tensor: Tensor
    """``[...]`` integer."""
    types: tuple[NodeType, ...]
    """The type of all of them, or of each row of the tensor; none: of multiple types, and never numbered again."""


class GraphWriter:
    """Writes a graph into a new folder.

    Edges are stored in order of destination, which is the form that samplers read, and their tensors in the same order.
    All files are written to a temporary folder, which is renamed at the end. Of multiple writers, one succeeds.

    Args:
        folder: does not exist yet, or is empty.
        homogeneous: whether the graph has one node type and one edge type, ``"_N"`` and ``("_N", "_E", "_N")``.
        memory: bytes for sorting, approximately; ``None``: a quarter of the free memory, at most 4 GiB.
        crc32: whether the manifest contains checksums of all files.
        progress: whether progress bars are written to stderr; ``None``: on a terminal, after a second.

    Raises:
        InputError: the folder is not empty, or cannot be created.

    If it fails, as on a full disk (CapacityError), nothing is left of the folder.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        homogeneous: bool,
        memory: int | None = None,
        crc32: bool = False,
        progress: bool | None = None,
    ) -> None:
        self.folder = path_of("folder", folder)
        flags(crc32=crc32)
        if memory is not None and memory < 1 << 20:
            raise InputError(f"Expected at least 1 MiB of memory to sort edges, got {memory} bytes.")
        target = Path(os.path.realpath(self.folder))
        self._made = [path for path in target.parents if not path.exists()]
        self._partial = unfinished(target)
        try:
            if target.exists() and any(target.iterdir()):
                raise self._taken()
            self._partial.mkdir(parents=True)
        except OSError as error:
            raise InputError(f"{self.folder}: the folder cannot be created: {error.strerror}.") from error
        self._memory = memory or min(1 << 32, (available_memory() or 1 << 32) // 4)
        self._crc32, self._progress = crc32, progress
        self._manifest: dict[str, Any] = {"format": FORMAT, "version": VERSION, "homogeneous": homogeneous}
        self._manifest |= {"nodes": [], "edges": []}
        self._files: set[str] = set()

    def add_nodes(
        self,
        node_type: NodeType,
        count: int,
        tensors: Mapping[str, Tensor | Rows],
        others: Mapping[str, Any] | None = None,
        ids: SourceIds | None = None,
    ) -> None:
        """Write the nodes of one type; tensors are ``[count, ...]``, others are as in :meth:`add_others`."""
        written = {}
        for name, tensor in tensors.items():
            if tensor.shape[:1] != (count,):
                raise GraphError(
                    f"Expected '{name}' of '{node_type}' to have {count} rows, one per node, got shape "
                    f"{list(tensor.shape)}."
                )
            written[name] = self._write(f"{node_type}.{name}", tensor)
        entry: dict[str, Any] = {"type": node_type, "count": count, "tensors": written}
        if ids is not None:
            entry["ids"] = ids.save(self._path(f"{node_type}.ids", torch.int64)).name
        self._manifest["nodes"].append(entry | self._others(node_type, others))

    def scratch(self) -> Path:
        """Return a new folder for temporary files, on the disk of the target. It is removed at the end."""
        with writing(self.folder, 0):
            return Path(tempfile.mkdtemp(prefix=".scratch-", dir=self._partial))

    def sorter(self, columns: Mapping[str, Kind]) -> EdgeSorter:
        """Return a sorter for the edges of one type, to be passed to :meth:`add_sorted`."""
        return EdgeSorter(self.scratch(), columns, memory=self._memory)

    def add_sorted(
        self,
        edge_type: EdgeType,
        edges: EdgeSorter,
        num_src: int,
        num_dst: int,
        *,
        transposed: Collection[str] = (),
        others: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the edges of one type, after all pieces were added to ``edges``.

        Columns in ``transposed`` were ``[..., num_edges]`` at their source.

        Raises:
            GraphError: an id that is not below the number of nodes.
        """
        prefix = "edges" if len(set(edge_type)) == 2 and edge_type[0] == "_N" else ".".join(edge_type)
        tables = ("colptr", "row", "edge_index")
        names = {name: self._path(f"{prefix}.{name}", torch.int64) for name in tables}
        for end, bound, count in (("source", num_src, edges.num_src), ("destination", num_dst, edges.num_dst)):
            if count > bound:
                raise GraphError(
                    f"Expected {end} ids of {prefix} in [0, {bound}), got {count - 1}. Check the ids, or the number of "
                    "nodes."
                )
        kinds = edges.columns
        names |= {name: self._path(f"{prefix}.{name}", dtype) for name, (dtype, _) in kinds.items()}
        edges.write(names, num_src, num_dst, progress=self._progress)
        entries = {name: self._entry(open_rows(path)) for name, path in names.items()}
        entry = {"type": list(edge_type), "count": edges.num_edges, **{name: entries[name] for name in tables}}
        entry |= {"tensors": {name: entries[name] for name in kinds}, "transposed": sorted(transposed)}
        self._manifest["edges"].append(entry | self._others(prefix, others))

    def add_others(self, others: Mapping[str, Any]) -> None:
        """Write attributes of the graph: tensors ``[n, ...]``, :class:`NodeIds`, numbers, texts, lists of them.

        Raises:
            InputError: a value of a different kind.
        """
        self._manifest |= self._others("graph", others)

    def finish(self) -> StoredGraph:
        """Write the manifest, name the folder, and open the graph.

        Raises:
            InputError: the folder has files in it by now, or is one that cannot be replaced.
        """
        for left in self._partial.glob(".scratch-*"):
            shutil.rmtree(left)
        text = json.dumps(self._manifest, indent=1) + "\n"
        with writing(self.folder / MANIFEST, len(text)):
            (self._partial / MANIFEST).write_text(text, encoding="utf-8")
        open_graph(self._partial)
        try:
            self._partial.rename(os.path.realpath(self.folder))
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise self._taken() from None
            raise InputError(
                f"{self.folder}: the folder cannot be replaced: {error.strerror}. Name a new one inside of it."
            ) from error
        return open_graph(self.folder)

    def __enter__(self) -> GraphWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            shutil.rmtree(self._partial, ignore_errors=True)
            with contextlib.suppress(OSError):  # not empty
                for path in self._made:
                    path.rmdir()

    def _taken(self) -> InputError:
        return InputError(f"{self.folder}: expected a new or an empty folder, found files in it. Name another one.")

    def _others(self, prefix: str, others: Mapping[str, Any] | None) -> dict[str, Any]:
        found: dict[str, dict[str, Any]] = {"tensors": {}, "values": {}}
        for name, value in (others or {}).items():
            if isinstance(value, NodeIds):
                found.setdefault("node_ids", {})[name] = list(value.types)
                value = value.tensor
            if isinstance(value, Tensor):
                found["tensors"][name] = self._write(f"{prefix}.{name}", value)
            elif within_levels(value, MOST_LEVELS // 2) and _is_plain(value):
                found["values"][name] = value
            else:
                raise InputError(
                    f"Expected '{name}' to be a tensor, a number, a text or a list of them (of at "
                    f"most {MOST_LEVELS // 2} levels), got a {type(value).__name__}. Delete or convert it: nothing is "
                    "ever pickled."
                )
        return {"others": found} if others else {}

    def _write(self, name: str, tensor: Tensor | Rows) -> dict[str, Any]:
        return self._entry(write(self._path(name, tensor.dtype), tensor, progress=self._progress))

    def _entry(self, rows: Rows) -> dict[str, Any]:
        files = [str(path.relative_to(self._partial)) for path in rows.paths]
        entry: dict[str, Any] = {"files": files, "dtype": dtype_name(rows.dtype), "shape": list(rows.shape)}
        if self._crc32:
            entry["crc32"] = checksums(rows)
        return entry

    def _path(self, name: str, dtype: torch.dtype) -> Path:
        """Return a separate file for a tensor, of a kind that can be mapped."""
        name = stem = re.sub(r"[^\w.-]", "_", name).lstrip(".") or "tensor"
        count = 1
        while name.lower() in self._files:  # some file systems do not distinguish A from a
            count += 1
            name = f"{stem}-{count}"
        self._files.add(name.lower())
        return self._partial / f"{name}{'.npy' if numpy_dtype(dtype) is not None else '.safetensors'}"


def save_graph(
    folder: str | PathLike[str],
    num_nodes: Mapping[NodeType, int],
    edges: Mapping[EdgeType, tuple[Tensor, Tensor]],
    *,
    node_tensors: Mapping[NodeType, Mapping[str, Tensor | Rows]] | None = None,
    edge_tensors: Mapping[EdgeType, Mapping[str, Tensor]] | None = None,
    homogeneous: bool = False,
    crc32: bool = False,
) -> StoredGraph:
    """Write a graph into a new folder.

    Args:
        folder: does not exist yet, or is empty.
        num_nodes: node type -> number of nodes.
        edges: edge type -> ``(src, dst)``, each ``[num_edges]`` integer.
        node_tensors: node type -> name -> ``[num_nodes, ...]``.
        edge_tensors: edge type -> name -> ``[num_edges, ...]``.
        homogeneous: whether it has only ``"_N"`` and ``("_N", "_E", "_N")``.
        crc32: whether the manifest contains checksums of all files.

    Returns:
        The graph as :func:`open_graph` returns it. Edges and their tensors are in order of destination.

    Raises:
        InputError: the folder has files in it.
        GraphError: ids, or numbers of rows, that do not fit.
    """
    with GraphWriter(folder, homogeneous=homogeneous, crc32=crc32) as writer:
        for node_type, count in num_nodes.items():
            writer.add_nodes(node_type, count, (node_tensors or {}).get(node_type, {}))
        for edge_type, (src, dst) in edges.items():
            columns = (edge_tensors or {}).get(edge_type, {})
            kinds, pieces = edge_pieces(src, dst, columns)
            sorter = writer.sorter(kinds)
            for piece in pieces:
                sorter.add(*piece)
            writer.add_sorted(edge_type, sorter, num_nodes[edge_type[0]], num_nodes[edge_type[2]])
        return writer.finish()


def edge_pieces(
    src: Tensor, dst: Tensor, columns: Mapping[str, Tensor | Rows]
) -> tuple[dict[str, Kind], Iterator[EdgePiece]]:
    """Return the kinds of the columns, and the edges in pieces. Mapped tensors are in memory one piece at a time."""
    count = src.shape[0]
    for name, values in {"dst": dst, **columns}.items():
        if values.shape[:1] != (count,):
            raise GraphError(f"Expected '{name}' to have {count} rows, one per edge, got shape {list(values.shape)}.")

    def pieces() -> Iterator[EdgePiece]:
        with contextlib.closing(Progress("Collecting edges", count, unit="edges")) as bar:
            for begin in range(0, count, _PIECE):
                end = min(begin + _PIECE, count)
                cut = {
                    name: values.read(begin, end) if isinstance(values, Rows) else values[begin:end].detach().cpu()
                    for name, values in columns.items()
                }
                yield src[begin:end].cpu().long(), dst[begin:end].cpu().long(), cut
                bar.add(end - begin)

    return {name: (values.dtype, tuple(values.shape[1:])) for name, values in columns.items()}, pieces()


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_plain(v) for v in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_plain(v) for k, v in value.items())
    return value is None or isinstance(value, bool | int | float | str)
