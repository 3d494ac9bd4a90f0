"""Write tensors to files, at once or piece by piece; atomic writes, and errors of full disks."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import shutil
import uuid
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from os import PathLike
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import CapacityError, InputError
from manyhop.files.dtypes import code_of_dtype, dtype_name, numpy_dtype
from manyhop.files.formats import open as open_rows
from manyhop.files.part import CHUNK
from manyhop.files.rows import Rows
from manyhop.system.arrays import bytes_of
from manyhop.system.progress import Progress
from manyhop.system.units import in_units

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def writing(path: Path, nbytes: int) -> Iterator[None]:
    """Raise CapacityError, with the space that ``nbytes`` lack, or InputError if the body cannot write the file."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise InputError(f"{path}: cannot be written: {error.strerror or error}.") from error
        raise CapacityError(
            f"{path}: expected room for {in_units(nbytes)} ({nbytes} bytes), got {error.strerror}: {_free(path)} free. "
            "Make room, or name a folder on another disk."
        ) from error


def unfinished(path: Path) -> Path:
    """Return a unique name in the folder of ``path`` for a file that is renamed to ``path`` when it is complete."""
    return path.with_name(f"{path.name[:50]}.{uuid.uuid4().hex[:12]}.partial")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name to write to. The file is renamed to ``path`` at the end, or removed after an error."""
    partial = unfinished(path)
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _free(path: Path) -> str:
    try:
        return f"{in_units(shutil.disk_usage(path.parent).free)} are"
    except OSError:
        return "it is not known how much is"


class TensorFile:
    """A file of a tensor of known shape, writable at any position: .npy, .safetensors (one tensor) or .bin.

    The file has a temporary name until it is closed without an error.
    """

    def __init__(self, path: str | PathLike[str], shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.path, self.shape, self.dtype = Path(path), shape, dtype
        if not shape:
            raise InputError(f"{self.path}: expected a tensor with rows, got a single number.")
        header = self._header()
        self._begin = len(header)
        self._partial = unfinished(self.path)
        self._nbytes = self._begin + math.prod(shape) * dtype.itemsize
        with writing(self.path, self._nbytes):
            self._file = os.open(self._partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                os.truncate(self._file, self._nbytes)
                os.pwrite(self._file, header, 0)
            except BaseException:
                os.close(self._file)
                self._partial.unlink()
                raise

    def write(self, element: int, data: Tensor) -> None:
        """Write ``data`` at position ``element`` of the flattened tensor."""
        view = bytes_of(data.cpu())
        position = self._begin + element * self.dtype.itemsize
        with writing(self.path, self._nbytes):
            while view.nbytes:
                count = os.pwrite(self._file, view[: 1 << 30], position)
                view, position = view[count:], position + count

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with writing(self.path, self._nbytes):
                os.close(self._file)  # some file systems report only now that there was no room
                if kind is None:
                    self._partial.replace(self.path)
        finally:
            self._partial.unlink(missing_ok=True)
        if kind is None and self.path.suffix == ".bin":
            write_manifest(self.path, self.shape, self.dtype)

    def _header(self) -> bytes:
        if self.path.suffix == ".npy":
            dtype = numpy_dtype(self.dtype)
            if dtype is None:
                raise InputError(f"{self.path}: .npy files cannot hold {self.dtype}: write .safetensors or .bin.")
            header, descr = io.BytesIO(), np.lib.format.dtype_to_descr(np.dtype(dtype))
            np.lib.format.write_array_header_1_0(
                header, {"descr": descr, "fortran_order": False, "shape": tuple(self.shape)}
            )
            return header.getvalue()
        if self.path.suffix == ".safetensors":
            nbytes = math.prod(self.shape) * self.dtype.itemsize
            entry = {"dtype": code_of_dtype(self.dtype), "shape": list(self.shape), "data_offsets": [0, nbytes]}
            text = json.dumps({"data": entry}).encode()
            text += b" " * (-(len(text) + 8) % 64)
            return len(text).to_bytes(8, "little") + text
        if self.path.suffix == ".bin":
            return b""
        raise InputError(f"{self.path}: expected .npy, .bin or .safetensors to write, got '{self.path.suffix}'.")


def write(path: str | PathLike[str], tensor: Tensor | Rows, *, progress: bool | None = None) -> Rows:
    """Write a tensor ``[num_rows, ...]``, or copy one from other files without holding more than a few rows in memory.

    Args:
        path: ``.npy``, ``.bin`` (also writes a manifest with a checksum) or ``.safetensors``.
        tensor: of any shape.
        progress: whether a progress bar is written to stderr; ``None``: on a terminal, after a second.

    Returns:
        The rows as :func:`manyhop.files.open` finds them.

    Raises:
        InputError: an unknown kind of file, a dtype that the file cannot hold, or a file that cannot be written.
        CapacityError: the disk is full.
    """
    path, row, crc32 = Path(path), math.prod(tensor.shape[1:]), 0
    step = max(1, CHUNK // max(1, row * tensor.dtype.itemsize))
    with (
        TensorFile(path, tuple(tensor.shape), tensor.dtype) as file,
        closing(Progress(f"Writing {path.name}", tensor.nbytes, show=progress)) as bar,
    ):
        for begin in range(0, tensor.shape[0], step):
            end = min(begin + step, tensor.shape[0])
            rows = tensor.read(begin, end) if isinstance(tensor, Rows) else tensor[begin:end].contiguous().cpu()
            file.write(begin * row, rows)
            crc32 = zlib.crc32(bytes_of(rows), crc32)
            bar.add(rows.nbytes)
    if path.suffix == ".bin":
        write_manifest(path, tuple(tensor.shape), tensor.dtype, crc32)
    return open_rows(path)


def write_manifest(path: Path, shape: tuple[int, ...], dtype: torch.dtype, crc32: int | None = None) -> None:
    """Write the manifest of a raw file."""
    manifest = {"shape": list(shape), "dtype": dtype_name(dtype)}
    if crc32 is not None:
        manifest["crc32"] = f"{crc32:08x}"
    text = json.dumps(manifest) + "\n"
    path = path.with_name(path.name + ".json")
    with writing(path, len(text)), replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
