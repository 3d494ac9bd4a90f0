"""Columns of Parquet files as tensors, read in row groups."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import InputError, MissingExtraError
from manyhop.files.part import file_size


def arrow(purpose: str, module: str = "pyarrow") -> Any:
    """Return a module of pyarrow; MissingExtraError without the package."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError("pyarrow", "files", purpose) from None


def open_parquet(path: Path) -> Any:
    """Return the open ``pyarrow.parquet.ParquetFile``."""
    file_size(path)
    parquet = arrow("Reading Parquet files", "pyarrow.parquet")
    try:
        return parquet.ParquetFile(path, memory_map=True)
    except (OSError, ValueError) as error:  # pyarrow's errors derive from these
        raise InputError(f"{path}: not a Parquet file: {error}.") from error


def parquet_columns(path: Path) -> list[str]:
    """Names of the columns."""
    with open_parquet(path) as file:
        return list(file.schema_arrow.names)


@dataclass(frozen=True)
class ParquetPart:
    """Columns of one Parquet file, side by side if there are multiple."""

    path: Path
    columns: tuple[str, ...]
    num_rows: int
    bounds: tuple[int, ...]
    """First row of each row group, and the number of rows."""

    def cuts(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the rows ``[begin, end)``, cut where row groups begin."""
        inner = [b for b in self.bounds if begin < b < end]
        return list(zip([begin, *inner], [*inner, end], strict=True)) if end > begin else []

    def read(self, begin: int, end: int, out: Tensor) -> None:
        """Read rows ``[begin, end)`` of one row group into ``out``."""
        group = bisect.bisect_right(self.bounds, begin) - 1
        with open_parquet(self.path) as file:
            table = file.read_row_group(group, columns=list(self.columns), use_threads=False)
        table = table.slice(begin - self.bounds[group], end - begin)
        for k, name in enumerate(self.columns):
            values = numbers(
                f"{self.path}, column '{name}'",
                table.column(name),
                out.shape if len(self.columns) == 1 else out.shape[:1],
            )
            (out if len(self.columns) == 1 else out[:, k]).copy_(torch.from_numpy(values))

    def check(self, rows: Tensor | None) -> None:
        """Check nothing: pyarrow verifies the checksums of Parquet files, if any."""


def numbers(where: str, array: Any, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return a column of numbers, or of lists of equal length, as an array of ``shape``."""
    types = arrow("Reading Parquet files").types
    if hasattr(array, "combine_chunks"):
        array = array.combine_chunks()
    if array.null_count:
        raise InputError(f"{where}: expected a number in every row, got {array.null_count} rows without one.")
    if not types.is_primitive(array.type):
        if not types.is_fixed_size_list(array.type):
            lengths = array.value_lengths().to_numpy(zero_copy_only=False)
            if (wrong := lengths[lengths != shape[1]]).size:
                raise InputError(f"{where}: expected lists of {shape[1]} numbers, got one of {wrong[0]}.")
        array = array.flatten()
        if array.null_count:
            raise InputError(f"{where}: expected numbers only, got {array.null_count} missing ones in the lists.")
    values: np.ndarray[Any, Any] = np.array(array.to_numpy(zero_copy_only=False))  # a copy: arrow's memory is read-only
    return values.reshape(tuple(shape))
