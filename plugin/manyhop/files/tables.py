"""Columns of CSV and Parquet files, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.files.parquet import arrow, numbers, parquet_columns
from manyhop.files.part import file_size
from manyhop.system.progress import Progress

TABLES = (".csv", ".tsv", ".parquet", ".pq")
_BLOCK = 1 << 20  # bytes of CSV at once
_ROWS = 1 << 18  # rows of Parquet at once


def is_table(path: Path) -> bool:
    """Return whether a file is CSV (compressed or not) or Parquet, by its name."""
    return _kind(path) in TABLES


@dataclass(frozen=True, kw_only=True)
class Table:
    """A CSV or Parquet file. Columns of CSV files without a header have the names 0, 1, 2, ..."""

    path: Path
    header: bool = True
    delimiter: str | None = None
    """Between the columns of CSV; ``None``: a comma, in .tsv files a tab."""

    def columns(self) -> list[str]:
        """Names of the columns."""
        file_size(self.path)
        if _kind(self.path) in (".parquet", ".pq"):
            return parquet_columns(self.path)
        with self._csv(None, None) as reader:
            names = list(reader.schema.names)
        return names if self.header else [str(k) for k in range(len(names))]

    def read(self, columns: Sequence[str], *, dtype: str | None = None) -> Iterator[list[Any]]:
        """Yield a ``pyarrow.Array`` of each column, for some rows at a time.

        Args:
            columns: names.
            dtype: dtype of CSV columns, such as ``"int64"``; ``None``: inferred from the beginning.

        Raises:
            InputError: a file that cannot be read like that, a missing value.
        """
        invalid = arrow("Reading CSV and Parquet files").ArrowInvalid
        row = 0
        try:
            for batch in self._batches(columns, dtype):
                for name, array in zip(columns, batch.columns, strict=True):
                    if array.null_count:
                        at = row + int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
                        raise InputError(f"{self.path}, column '{name}': row {at} has no value.")
                row += batch.num_rows
                yield batch.columns
        except (invalid, OSError, EOFError) as error:
            raise InputError(f"{self.path}: cannot be read: {error}.") from error

    def matrix(self) -> Iterator[Tensor]:
        """Yield all columns, ``[n, num_columns]``: int64 if all are whole, otherwise float32 (missing: NaN)."""
        columns, dtype = self.columns(), "int64"
        try:
            for _ in self.read(columns, dtype=dtype):
                pass
        except InputError:
            dtype = "float64"
        invalid = arrow("Reading CSV and Parquet files").ArrowInvalid
        try:
            for batch in self._batches(columns, dtype):
                arrays = [array.to_numpy(zero_copy_only=False) for array in batch.columns]
                yield torch.from_numpy(np.stack(arrays, 1).astype(np.int64 if dtype == "int64" else np.float32))
        except (invalid, OSError, EOFError) as error:
            raise InputError(f"{self.path}: expected numbers: {error}.") from error

    def _batches(self, columns: Sequence[str], dtype: str | None) -> Iterator[Any]:
        file_size(self.path)
        with closing(Progress(f"Reading {self.path.name}", None, unit="rows")) as bar:
            if _kind(self.path) in (".parquet", ".pq"):
                parquet = arrow("Reading Parquet files", "pyarrow.parquet")
                with parquet.ParquetFile(self.path, pre_buffer=False, buffer_size=1 << 20) as file:
                    for batch in file.iter_batches(batch_size=_ROWS, columns=list(columns), use_threads=False):
                        bar.add(batch.num_rows)
                        yield batch.select(list(columns))
                return
            with self._csv(list(columns) if self.header else [f"f{name}" for name in columns], dtype) as reader:
                for batch in reader:
                    bar.add(batch.num_rows)
                    yield batch

    def _csv(self, names: Sequence[str] | None, dtype: str | None) -> Any:
        file_size(self.path)
        csv = arrow("Reading CSV files", "pyarrow.csv")
        types = None if dtype is None else dict.fromkeys(names or [], arrow("Reading CSV files").type_for_alias(dtype))
        delimiter = self.delimiter or ("\t" if _kind(self.path) == ".tsv" else ",")
        try:
            return csv.open_csv(
                self.path,
                read_options=csv.ReadOptions(
                    use_threads=False, block_size=_BLOCK, autogenerate_column_names=not self.header
                ),
                parse_options=csv.ParseOptions(delimiter=delimiter),
                convert_options=csv.ConvertOptions(include_columns=names, column_types=types),
            )
        except (OSError, EOFError, ValueError, KeyError) as error:  # ArrowInvalid is a ValueError
            raise InputError(f"{self.path}: cannot be read as CSV: {error}.") from error


def tensor(array: Any, where: str) -> Tensor:
    """Return a ``pyarrow.Array`` of numbers, or of lists of equal length, as ``[n]`` or ``[n, width]``."""
    types = arrow("Reading CSV and Parquet files").types
    kind, shape = array.type, [len(array)]
    if types.is_fixed_size_list(kind):
        shape, kind = [len(array), kind.list_size], kind.value_type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise InputError(f"{where}: expected numbers or lists of as many numbers, got {kind}.")
    return torch.from_numpy(numbers(where, array, shape))


def _kind(path: Path) -> str:
    """Return the ending, without that of a compression."""
    return path.with_suffix("").suffix if path.suffix in (".gz", ".bz2", ".zst", ".lz4") else path.suffix
