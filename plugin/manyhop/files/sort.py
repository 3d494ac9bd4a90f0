"""Edges in any number, in any order -> compressed columns in files, in bounded memory.

Edges are written to temporary files. If they exceed the memory, they are divided into buckets by ranges of
destinations, which are sorted and written one at a time. Edges of a destination retain their order, so samples of the
stored graph and of the source are equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import torch
from torch import Tensor

from manyhop.errors import GraphError, InputError
from manyhop.files.part import FilePart
from manyhop.files.tensor_file import TensorFile, writing
from manyhop.system.arrays import bytes_of
from manyhop.system.memory import require_memory
from manyhop.system.progress import Progress

Kind = tuple[torch.dtype, tuple[int, ...]]
"""Dtype and row shape of a column."""


class EdgeSorter:
    """Sort the edges of one type by destination.

    Args:
        folder: an empty folder for temporary files, on the disk of the target.
        columns: name -> dtype and row shape of the edges' tensors.
        memory: bytes to use, approximately, in addition to tables of nodes.
    """

    def __init__(self, folder: Path, columns: Mapping[str, Kind], *, memory: int) -> None:
        taken = {"src", "dst", "colptr", "row", "edge_index"} & set(columns)
        if taken:
            raise InputError(f"Expected other names for tensors of edges than {sorted(taken)}: rename them.")
        self._folder = folder
        self._kinds: dict[str, Kind] = {"src": (torch.int64, ()), "dst": (torch.int64, ()), **columns}
        record = sum(math.prod(shape) * dtype.itemsize for dtype, shape in self._kinds.values())
        self.piece = max(1024, memory // (3 * record + 32))
        """Number of edges per step."""
        self._all = _Pile(folder, "all", self._kinds)
        self._degree = torch.zeros(0, dtype=torch.int64, device="cpu")
        self._in_order = True
        self._last = 0
        self.num_src = 0
        """1 + the highest source id so far."""

    @property
    def columns(self) -> dict[str, Kind]:
        """Return the kinds of the edges' tensors."""
        return {name: kind for name, kind in self._kinds.items() if name not in ("src", "dst")}

    @property
    def num_dst(self) -> int:
        """1 + the highest destination id so far."""
        return self._degree.numel()

    @property
    def num_edges(self) -> int:
        """Edges so far."""
        return self._all.num_rows

    def add(self, src: Tensor, dst: Tensor, columns: Mapping[str, Tensor]) -> None:
        """Add edges: ``[n] int64`` ids, and ``[n, ...]`` of each column.

        Raises:
            GraphError: a negative id.
            CapacityError: an id so high that a number for each node does not fit in memory, or a full disk.
        """
        if src.numel() == 0:
            return
        for end, ids in (("source", src), ("destination", dst)):
            if int(ids.min()) < 0:
                at = self.num_edges + int((ids < 0).nonzero()[0])
                raise GraphError(f"Expected ids of at least 0, got the {end} {int(ids.min())} (edge {at} or later).")
        self.num_src = max(self.num_src, int(src.max()) + 1)
        self._count(dst)
        up = bool((dst[1:] >= dst[:-1]).all()) and int(dst[0]) >= self._last
        self._in_order, self._last = self._in_order and up, int(dst[-1])
        self._all.append({"src": src, "dst": dst, **columns})

    def write(self, names: Mapping[str, Path], num_src: int, num_dst: int, *, progress: bool | None = None) -> None:
        """Write ``colptr``, ``row``, ``edge_index`` and the columns to files: by name."""
        _require_for(num_dst)
        colptr = torch.zeros(num_dst + 1, dtype=torch.int64, device="cpu")
        torch.cumsum(self._degree, 0, out=colptr[1 : self.num_dst + 1])
        colptr[self.num_dst + 1 :] = self.num_edges
        with TensorFile(names["colptr"], (num_dst + 1,), torch.int64) as file:
            file.write(0, colptr)
        row = torch.int32 if num_src <= 2**31 else torch.int64
        passes = 1 if self._in_order else 2 if self.num_edges <= self.piece else 3
        with ExitStack() as stack:
            bar = stack.enter_context(
                closing(Progress("Sorting edges", passes * self.num_edges, unit="edges", show=progress))
            )
            rows = stack.enter_context(TensorFile(names["row"], (self.num_edges,), row))
            ends = stack.enter_context(TensorFile(names["edge_index"], (2, self.num_edges), torch.int64))
            columns = {
                name: stack.enter_context(TensorFile(names[name], (self.num_edges, *shape), dtype))
                for name, (dtype, shape) in self.columns.items()
            }
            position = 0
            for piece in self._sorted(colptr, bar):
                src = piece["src"]
                rows.write(position, src.to(row))
                ends.write(position, src)
                ends.write(self.num_edges + position, piece["dst"])
                for name, column in columns.items():
                    column.write(position * math.prod(column.shape[1:]), piece[name])
                position += src.numel()
                bar.add(src.numel())

    def _count(self, dst: Tensor) -> None:
        high = int(dst.max()) + 1
        if high > self.num_dst:
            _require_for(high)
            grown = torch.zeros(high, dtype=torch.int64, device="cpu")
            grown[: self.num_dst] = self._degree
            self._degree = grown
        self._degree.index_add_(0, dst, torch.ones_like(dst))

    def _sorted(self, colptr: Tensor, bar: Progress) -> Iterator[dict[str, Tensor]]:
        """Yield all edges in order of destination, in pieces."""
        if self._in_order:
            yield from self._all.pieces(self.piece)
        elif self.num_edges <= self.piece:
            yield _in_order(self._all.read(0, self.num_edges), bar)
        else:
            for pile, is_column in self._buckets(colptr, bar):
                if is_column:  # all its edges have one destination: they may be more than memory holds
                    bar.add(pile.num_rows)
                    yield from pile.pieces(self.piece)
                else:
                    yield _in_order(pile.read(0, pile.num_rows), bar)
                pile.remove()
        self._all.remove()

    def _buckets(self, colptr: Tensor, bar: Progress) -> Iterator[tuple[_Pile, bool]]:
        """Deal the edges out to ranges of destinations of at most ``piece`` edges, or of one destination."""
        bounds = [0]
        while bounds[-1] < colptr.numel() - 1:
            limit = colptr[bounds[-1]] + self.piece
            bounds.append(max(bounds[-1] + 1, int(torch.searchsorted(colptr, limit, right=True)) - 1))
        piles = [_Pile(self._folder, f"bucket{k}", self._kinds) for k in range(len(bounds) - 1)]
        inner = torch.tensor(bounds[1:-1], dtype=torch.int64, device="cpu")
        for piece in self._all.pieces(self.piece):
            bucket, order = torch.sort(torch.bucketize(piece["dst"], inner, right=True, out_int32=True), stable=True)
            piece = {name: values[order] for name, values in piece.items()}
            counts = torch.bincount(bucket, minlength=len(piles)).tolist()
            begin = 0
            for pile, count in zip(piles, counts, strict=True):
                if count:
                    pile.append({name: values[begin : begin + count] for name, values in piece.items()})
                begin += count
            bar.add(bucket.numel())
        self._all.remove()
        for k, pile in enumerate(piles):
            if pile.num_rows:
                yield pile, bounds[k + 1] - bounds[k] == 1


def _require_for(num_dst: int) -> None:
    """Raise CapacityError unless tables with a number for each node fit in memory."""
    what = f"Sorting edges of {num_dst} nodes (ids up to {num_dst - 1})"
    require_memory(what, 16 * num_dst, "Map the ids to 0, 1, 2, ... (manyhop convert --ids map), or correct them.")


def _in_order(piece: dict[str, Tensor], bar: Progress) -> dict[str, Tensor]:
    dst = piece["dst"]
    key = dst.int() if dst.numel() and int(dst.max()) < 2**31 else dst  # torch sorts int32 several times as fast
    order = torch.sort(key, stable=True).indices
    bar.add(order.numel())
    return {name: values[order] for name, values in piece.items()}


class _Pile:
    """Rows of several columns in temporary files, one file per column, that grow at their ends."""

    def __init__(self, folder: Path, name: str, kinds: Mapping[str, Kind]) -> None:
        self._kinds = kinds
        self._paths = {column: folder / f"{name}.{i}" for i, column in enumerate(kinds)}
        self.num_rows = 0

    def append(self, columns: Mapping[str, Tensor]) -> None:
        count = columns["dst"].numel()
        for name, (dtype, shape) in self._kinds.items():
            values = columns[name]
            if values.dtype != dtype or values.shape != (count, *shape):
                raise InputError(
                    f"Expected '{name}' of {count} edges as {dtype} of shape {[count, *shape]}, got {values.dtype} of "
                    f"shape {list(values.shape)}."
                )
            path, data = self._paths[name], bytes_of(values)
            with (
                writing(path, self.num_rows * math.prod(shape) * dtype.itemsize + data.nbytes),
                path.open("ab") as file,
            ):
                file.write(data)
        self.num_rows += count

    def read(self, begin: int, end: int) -> dict[str, Tensor]:
        columns = {}
        for name, (dtype, shape) in self._kinds.items():
            columns[name] = torch.empty((end - begin, *shape), dtype=dtype, device="cpu")
            row_bytes = math.prod(shape) * dtype.itemsize
            part = FilePart(path=self._paths[name], offset=0, num_rows=self.num_rows, row_bytes=row_bytes)
            if columns[name].numel():
                part.read(begin, end, columns[name])
        return columns

    def pieces(self, size: int) -> Iterator[dict[str, Tensor]]:
        for begin in range(0, self.num_rows, size):
            yield self.read(begin, min(begin + size, self.num_rows))

    def remove(self) -> None:
        for path in self._paths.values():
            path.unlink(missing_ok=True)
