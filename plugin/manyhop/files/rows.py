"""The rows of a tensor that is stored in one file or in several."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from manyhop.errors import FeatureError, InputError
from manyhop.files.dtypes import dtype_name
from manyhop.files.part import FilePart, Part
from manyhop.system.memory import require_memory
from manyhop.system.progress import Progress

_OWN_MEMORY_CHECK = 1 << 28  # smaller tensors are not worth asking how much memory is free

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


class Rows:
    """A tensor ``[num_rows, ...]`` in files, opened without loading by :func:`manyhop.files.open`.

    Attributes:
        shape: the shape of the whole tensor.
        dtype: its dtype.
        parts: where the rows are.
    """

    def __init__(self, parts: Sequence[Part], dtype: torch.dtype, row_shape: tuple[int, ...]) -> None:
        self.parts = tuple(parts)
        self._begins = list(accumulate((part.num_rows for part in parts), initial=0))
        self.shape = (self._begins[-1], *row_shape)
        self.dtype = dtype

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the files, in the order of the rows."""
        return tuple(part.path for part in self.parts)

    @property
    def can_map(self) -> bool:
        """Return whether :meth:`mapped` works: the tensor is one file, uncompressed."""
        return len(self.parts) == 1 and isinstance(self.parts[0], FilePart)

    def __repr__(self) -> str:
        files = str(self.paths[0]) if len(self.parts) == 1 else f"{len(self.parts)} files"
        return f"Rows({list(self.shape)}, {dtype_name(self.dtype)}, {files})"

    def mapped(self) -> Tensor:
        """Return a tensor whose memory is the file.

        Pages are read on first use and shared by all processes of a machine. Writes affect this process only.

        Raises:
            InputError: the tensor has multiple files, or one that cannot be mapped (Parquet).
            CapacityError: the process may not map so much.
        """
        part = self.parts[0]
        if len(self.parts) > 1:
            raise InputError(
                f"{part.path} and {len(self.parts) - 1} more: one file can be mapped, several cannot. Use read(), or "
                "join them: manyhop.files.write('joined.npy', manyhop.files.open(paths))."
            )
        if not isinstance(part, FilePart):
            raise InputError(
                f"{part.path}: Parquet files cannot be mapped. Use read(), or write another format: "
                "manyhop.files.write('x.npy', manyhop.files.open(path))."
            )
        return part.map(self.shape, self.dtype)

    def read(
        self,
        begin: int = 0,
        end: int | None = None,
        *,
        out: Tensor | None = None,
        threads: int | None = None,
        progress: bool | None = None,
    ) -> Tensor:
        """Read the rows ``[begin, end)``, and nothing else. Checksums are verified of files that are read wholly.

        Args:
            begin: first row.
            end: the row after the last; ``None``: all that follow.
            out: ``[end - begin, ...]`` contiguous CPU tensor of the same dtype to read into; ``None``: a new one.
            threads: how many threads read; ``None``: one per core, at most 8.
            progress: whether a progress bar is written to stderr; ``None``: on a terminal, after a second.

        Returns:
            ``[end - begin, ...]``: ``out``, or a new tensor.

        Raises:
            InputError: a range outside the rows; a file that is truncated or damaged.
            FeatureError: an ``out`` of a different shape, dtype or kind.
            CapacityError: the rows do not fit in memory.
        """
        end = self.num_rows if end is None else end
        if not 0 <= begin <= end <= self.num_rows:
            raise InputError(f"Expected 0 <= begin <= end <= {self.num_rows}, got begin={begin}, end={end}.")
        shape = (end - begin, *self.shape[1:])
        if out is None:
            nbytes = math.prod(shape) * self.dtype.itemsize
            if nbytes > _OWN_MEMORY_CHECK:
                require_memory(f"Reading {self!r}", nbytes, "Map the file (mapped()), or read fewer rows at a time.")
            out = torch.empty(shape, dtype=self.dtype, device="cpu")
        elif out.shape != shape or out.dtype != self.dtype or out.device.type != "cpu" or not out.is_contiguous():
            raise FeatureError(
                f"Expected out to be a contiguous CPU tensor {self.dtype} of shape {list(shape)}, got {out.dtype} of "
                f"shape {list(out.shape)} on {out.device}{'' if out.is_contiguous() else ', not contiguous'}."
            )
        if out.numel():
            bar = Progress(f"Reading {self._title()}", out.nbytes, show=progress)
            self._read(begin, end, out.detach(), threads, bar)
        return out

    def verify(self, *, threads: int | None = None, progress: bool | None = None) -> None:
        """Read all files that have checksums and compare.

        Raises:
            InputError: a file is truncated or damaged.
        """
        bar = Progress(f"Checking {self._title()}", self.nbytes, show=progress)

        def check(part: Part) -> None:
            part.check(None)
            bar.add(part.num_rows * self.nbytes // max(self.num_rows, 1))

        _in_threads([partial(check, part) for part in self.parts], threads, bar)

    def flat(self) -> Rows:
        """Return the same numbers as one long row after row: ``[prod(shape)]``; InputError if they cannot be mapped."""
        part = self.parts[0]
        if not self.can_map or not isinstance(part, FilePart):
            raise InputError(f"Expected one file that can be mapped, got {self!r}.")
        item = replace(part, num_rows=math.prod(self.shape), row_bytes=self.dtype.itemsize)
        return Rows([item], self.dtype, ())

    def expecting(self, crc32: Sequence[str]) -> Rows:
        """Return the same rows, with the CRC-32 that each of their files is expected to have."""
        parts = [
            replace(part, crc32=value) if isinstance(part, FilePart) else part
            for part, value in zip(self.parts, crc32, strict=True)
        ]
        return Rows(parts, self.dtype, self.shape[1:])

    def _read(self, begin: int, end: int, out: Tensor, threads: int | None, bar: Progress) -> None:
        def read(part: Part, begin: int, end: int, piece: Tensor) -> None:
            part.read(begin, end, piece)
            bar.add(piece.nbytes)

        pieces: list[Callable[[], None]] = []
        checks: list[Callable[[], None]] = []
        for part, (first, after) in zip(self.parts, pairwise(self._begins), strict=True):
            low, high = max(begin, first), min(end, after)
            if low >= high:
                continue
            rows = out[low - begin : high - begin]
            for a, b in part.cuts(low - first, high - first):
                pieces.append(partial(read, part, a, b, rows[a - (low - first) : b - (low - first)]))
            if (low, high) == (first, after):
                checks.append(partial(part.check, rows))
        _in_threads(pieces, threads, bar)
        _in_threads(checks, threads, None)

    def _title(self) -> str:
        return self.paths[0].name if len(self.parts) == 1 else f"{len(self.parts)} files"


def _in_threads(tasks: Sequence[Callable[[], None]], threads: int | None, bar: Progress | None) -> None:
    """Run all tasks. Raise the first error, after which no task begins."""
    if threads is not None and threads < 1:
        raise InputError(f"Expected at least 1 thread, got {threads}.")
    count = min(len(tasks), threads or min(8, os.cpu_count() or 1))
    try:
        if count <= 1:
            for task in tasks:
                task()
            return
        with ThreadPoolExecutor(count, thread_name_prefix="manyhop-read") as executor:
            futures = [executor.submit(task) for task in tasks]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                executor.shutdown(wait=True, cancel_futures=True)
            for future in done:
                future.result()
    finally:
        if bar is not None:
            bar.close()
