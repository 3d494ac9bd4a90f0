"""Rows stored as bytes in one file: mapped, read, checked."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from manyhop.errors import CapacityError, InputError
from manyhop.system.arrays import bytes_of
from manyhop.system.mapped import watch

CHUNK = 1 << 24
"""Bytes that are read at once."""

# Without it, Linux rejects private mappings of files that are larger than the machine's memory.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class Part(Protocol):
    """Some rows of a tensor, in one file. ``cuts`` divides a range of rows into ranges that are read one at a time."""

    @property
    def path(self) -> Path: ...
    @property
    def num_rows(self) -> int: ...
    def cuts(self, begin: int, end: int) -> list[tuple[int, int]]: ...
    def read(self, begin: int, end: int, out: Tensor) -> None: ...
    def check(self, rows: Tensor | None) -> None: ...


@dataclass(frozen=True, kw_only=True)
class FilePart:
    """Rows that are contiguous in a file."""

    path: Path
    offset: int
    """Begin of the first row, in bytes."""
    num_rows: int
    row_bytes: int
    crc32: str | None = None
    """8 hexadecimal digits: the checksum of the bytes of the rows."""
    sha256: str | None = None
    """64 hexadecimal digits: the same."""

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.num_rows * self.row_bytes

    def require_size(self) -> FilePart:
        """Raise InputError if the file is too short."""
        size = file_size(self.path)
        if size < self.offset + self.nbytes:
            raise InputError(
                f"{self.path}: expected {self.offset + self.nbytes} bytes, got {size}: the file is truncated, or its "
                "header or manifest belongs to a different file. Copy or write it again."
            )
        return self

    def cuts(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the rows ``[begin, end)`` in ranges of about 16 MiB."""
        step = max(1, CHUNK // max(self.row_bytes, 1))
        return [(i, min(i + step, end)) for i in range(begin, end, step)]

    def read(self, begin: int, end: int, out: Tensor) -> None:
        """Read rows ``[begin, end)`` into ``out``."""
        assert out.is_contiguous()  # else a copy would be filled
        view, position = bytes_of(out), self.offset + begin * self.row_bytes
        file = os.open(self.path, os.O_RDONLY)
        try:
            while view.nbytes:
                count = os.preadv(file, [view], position)
                if count == 0:
                    raise InputError(f"{self.path}: ended at byte {position}, truncated while it was read.")
                view, position = view[count:], position + count
        finally:
            os.close(file)

    def map(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the rows as a tensor whose memory is the file. Writing to it changes this process's copy, not the
        file.
        """
        self.require_size()
        if self.nbytes == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        if self.offset % dtype.itemsize:
            raise InputError(
                f"{self.path}: cannot be mapped: its numbers begin at byte {self.offset}, which is no multiple of "
                f"{dtype.itemsize}. Use read(), or write the file again."
            )
        file = os.open(self.path, os.O_RDONLY)
        try:
            memory = mmap.mmap(
                file,
                self.offset + self.nbytes,
                flags=mmap.MAP_PRIVATE | _NO_RESERVE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
            )
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise CapacityError(
                f"{self.path}: this process may not map {self.nbytes} bytes (see `ulimit -v` and "
                "vm.overcommit_memory). Raise the limit, or read the rows that are needed."
            ) from error
        finally:
            os.close(file)
        watch(memory, self.path, self.offset + self.nbytes)
        count = self.nbytes // dtype.itemsize
        return torch.frombuffer(memory, dtype=dtype, count=count, offset=self.offset).view(shape)

    def check(self, rows: Tensor | None) -> None:
        """Raise InputError if ``rows`` (``None``: the file) do not match existing checksums."""
        if self.crc32 is None and self.sha256 is None:
            return
        self.require_size()
        for name, expected, got in (("crc32", self.crc32, self.crc32_of), ("sha256", self.sha256, self._sha256)):
            if expected is not None and got(rows) != expected.lower():
                raise InputError(
                    f"{self.path}: its {name} is not the {expected} of the manifest: the file is damaged or has been "
                    "changed. Copy or write it again."
                )

    def crc32_of(self, rows: Tensor | None) -> str:
        """Return the CRC-32 of ``rows`` (``None``: of the file)."""
        value = 0
        for data in self._pieces(rows):
            value = zlib.crc32(data, value)
        return f"{value:08x}"

    def _sha256(self, rows: Tensor | None) -> str:
        digest = hashlib.sha256()
        for data in self._pieces(rows):
            digest.update(data)
        return digest.hexdigest()

    def _pieces(self, rows: Tensor | None) -> Iterator[memoryview]:
        if rows is not None:
            yield bytes_of(rows)
            return
        buffer = torch.empty(min(CHUNK, self.nbytes), dtype=torch.uint8, device="cpu")
        whole = replace(self, num_rows=self.nbytes, row_bytes=1)
        for begin in range(0, self.nbytes, CHUNK):
            out = buffer[: min(CHUNK, self.nbytes - begin)]
            whole.read(begin, begin + out.numel(), out)
            yield bytes_of(out)


def file_size(path: Path) -> int:
    """Return the bytes of a file; InputError if it does not exist."""
    try:
        if not path.exists():
            raise InputError(f"{path}: there is no such file or folder.")
        if not path.is_file():
            raise InputError(f"{path}: expected a file, found {'a folder' if path.is_dir() else 'none'} there.")
        return path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from error
