"""Open tensors in files: their headers and manifests tell where the rows are. JSON is read with limits."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manyhop.errors import InputError
from manyhop.files.dtypes import dtype_of_code, dtype_of_name, dtype_of_numpy
from manyhop.files.parquet import ParquetPart, arrow, open_parquet, parquet_columns
from manyhop.files.part import FilePart, file_size
from manyhop.files.rows import Paths, Rows

MOST_BYTES = 1 << 28
"""Bytes of a JSON file that is read."""
MOST_LEVELS = 64
"""Lists and objects inside of each other."""


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. InputError: no JSON, too large, too deep, or a duplicate key."""
    if not path.exists():
        raise FileNotFoundError(path)
    if (size := file_size(path)) > MOST_BYTES:
        raise InputError(f"{path}: expected at most {MOST_BYTES} bytes of JSON, got {size}. Keep data in other files.")
    return parse_json(path.read_bytes(), str(path))


def parse_json(text: bytes, where: str) -> Any:
    """Return the value of JSON text; raises as :func:`read_json`."""
    try:
        value = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        what = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(f"{where}: expected a JSON text: {what}.") from error
    if not within_levels(value, MOST_LEVELS):
        raise InputError(f"{where}: expected a JSON text of at most {MOST_LEVELS} levels: it is nested too deeply.")
    return value


def within_levels(value: Any, levels: int) -> bool:
    """Return whether lists and dictionaries are nested at most ``levels`` times."""
    if not isinstance(value, list | dict):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(within_levels(v, levels - 1) for v in inner)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name!r} occurs twice")
        found[name] = value
    return found


_KNOWN = ".npy, .bin (with a manifest .bin.json beside it), .json (a manifest), .parquet and .safetensors"
_MOST_HEADER = 100_000_000  # bytes of a safetensors header, by its specification


def open(paths: Paths, *, name: str | Sequence[str] | None = None) -> Rows:
    """Open a tensor in files: reads their headers only, and unpickles nothing.

    Args:
        paths: one file, or multiple files to concatenate: ``.npy``; ``.bin`` (raw numbers)
            with a manifest ``.bin.json``; ``.json`` (a manifest that names its parts); ``.parquet``;
            ``.safetensors``.
        name: a tensor of a safetensors file, or a column (or columns, side by side) of a Parquet file; optional if
            there is only one.

    Raises:
        InputError: a file is missing, truncated, of an unknown kind, or has a different dtype or shape.
        MissingExtraError: Parquet files need ``manyhop[files]``.
    """
    files = [paths] if isinstance(paths, str | PathLike) else list(paths)
    if not files:
        raise InputError("Expected at least one file, got an empty list.")
    found = [_find(Path(path), name) for path in files]
    first = found[0]
    for path, other in zip(files, found, strict=True):
        if (other.dtype, other.shape[1:]) != (first.dtype, first.shape[1:]):
            raise InputError(
                f"{path}: expected rows as in {files[0]}: {first.dtype} of shape {list(first.shape[1:])}, got "
                f"{other.dtype} of shape {list(other.shape[1:])}."
            )
    return Rows([part for each in found for part in each.parts], first.dtype, first.shape[1:])


def names(path: str | PathLike[str]) -> list[str] | None:
    """Return the names of tensors in a safetensors file, or of columns in a Parquet file; ``None`` for other kinds."""
    path = Path(path)
    if path.suffix == ".safetensors":
        return list(safetensors_header(path)[0])
    return parquet_columns(path) if path.suffix in (".parquet", ".pq") else None


def _find(path: Path, name: str | Sequence[str] | None) -> Rows:
    if path.suffix in (".safetensors", ".parquet", ".pq"):
        known = names(path) or []
        wanted = known if name is None else [name] if isinstance(name, str) else list(name)
        missing = [n for n in wanted if n not in known]
        if missing or not wanted or (name is None and len(known) > 1):
            what = "tensor" if path.suffix == ".safetensors" else "column"
            got = f"name={name!r}" if name is not None else "no name"
            raise InputError(f"{path}: expected name to be a {what} of {known}, got {got}.")
        if path.suffix != ".safetensors":
            return read_parquet(path, wanted)
        if len(wanted) > 1:
            raise InputError(f"{path}: expected the name of one tensor, got {wanted}.")
        return read_safetensors(path, wanted[0])
    if path.suffix not in (".npy", ".bin", ".json"):
        if not path.exists():
            raise InputError(f"{path}: there is no such file or folder.")
        raise InputError(f"{path}: expected one of {_KNOWN}; got '{path.suffix}'.")
    if name is not None:
        raise InputError(f"{path}: holds one tensor without a name, got name={name!r}: leave it out.")
    if path.suffix == ".npy":
        return read_npy(path)
    return read_manifest(path.with_name(path.name + ".json") if path.suffix == ".bin" else path)


def read_npy(path: Path) -> Rows:
    """Return the rows of a .npy file."""
    shape, is_fortran, dtype, offset = _npy_header(path)
    if is_fortran:
        raise InputError(
            f"{path}: its rows are not contiguous (Fortran order): write it again with "
            "numpy.save(path, numpy.ascontiguousarray(array))."
        )
    return _file(path, offset, shape, dtype)


def read_fortran_npy(path: Path) -> Rows | None:
    """Return the transpose of a matrix that a .npy file stores column by column; ``None`` for anything else."""
    if path.suffix != ".npy":
        return None
    shape, is_fortran, dtype, offset = _npy_header(path)
    return _file(path, offset, shape[::-1], dtype) if is_fortran and len(shape) == 2 else None


def _npy_header(path: Path) -> tuple[tuple[int, ...], bool, torch.dtype, int]:
    """Return shape, whether columns instead of rows are contiguous, dtype, and where the numbers begin."""
    file_size(path)
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
            shape = _shape(list(shape), str(path))
        except InputError:
            raise
        except Exception as error:  # a damaged header raises errors of many kinds
            raise InputError(
                f"{path}: not a .npy file, or a truncated one: {error} Write it with numpy.save."
            ) from error
        offset = file.tell()
    if dtype.hasobject:
        raise InputError(f"{path}: holds Python objects, which are never unpickled. Save an array of numbers.")
    return shape, fortran and sum(n > 1 for n in shape) > 1, dtype_of_numpy(dtype, str(path)), offset


def safetensors_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the entries by tensor name, and the offset of the data."""
    size = file_size(path)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(_MOST_HEADER, size - 8):
            raise InputError(f"{path}: not a safetensors file: its header would have {length} bytes, the file {size}.")
        header = parse_json(file.read(length), f"{path}: not a safetensors file, its header")
    if not isinstance(header, dict) or not all(isinstance(entry, dict) for entry in header.values()):
        raise InputError(f"{path}: not a safetensors file: its header is not a JSON object of objects.")
    header.pop("__metadata__", None)
    return header, 8 + length


def read_safetensors(path: Path, name: str) -> Rows:
    """Return one tensor of a safetensors file."""
    header, begin = safetensors_header(path)
    where, entry = f"{path}, tensor '{name}'", header[name]
    dtype, shape = dtype_of_code(entry.get("dtype"), where), _shape(entry.get("shape"), where)
    low, high = (*_ints(entry.get("data_offsets"), f"{where}, data_offsets"), -1, -1)[:2]
    if low < 0 or high - low != math.prod(shape) * dtype.itemsize:
        raise InputError(
            f"{where}: expected data_offsets of {math.prod(shape) * dtype.itemsize} bytes for {dtype} of shape "
            f"{list(shape)}, got {entry.get('data_offsets')}."
        )
    return _file(path, begin + low, shape, dtype, where)


def read_raw(path: Path, dtype: torch.dtype, width: int | None) -> Rows:
    """Return a raw file without a manifest: rows of ``width`` numbers; ``None``: of one, ``[num_rows]``."""
    size, row_bytes = file_size(path), (width or 1) * dtype.itemsize
    if size % row_bytes:
        raise InputError(
            f"{path}: expected rows of {row_bytes} bytes ({width or 1} of {dtype}), got {size} bytes, which is not a "
            "multiple. Correct the dtype or the width."
        )
    part = FilePart(path=path, offset=0, num_rows=size // row_bytes, row_bytes=row_bytes)
    return Rows([part], dtype, () if width is None else (width,))


def read_manifest(path: Path) -> Rows:
    """Read a JSON manifest of raw files: of ``x.bin`` (``x.bin.json``), or of the parts that it names."""
    try:
        manifest = read_json(path)
    except FileNotFoundError:
        raise InputError(
            f"{path}: a raw file needs this manifest, with its shape and dtype, such as "
            '{"shape": [1000, 128], "dtype": "float32"}. For convert, see also --raw.'
        ) from None
    if not isinstance(manifest, dict):
        raise InputError(f"{path}: expected a JSON object with 'shape' and 'dtype', got {type(manifest).__name__}.")
    no_others(manifest, {"shape", "dtype", "crc32", "sha256", "parts"}, str(path))
    dtype = dtype_of_name(manifest.get("dtype"), str(path))
    shape = _shape(manifest.get("shape"), str(path))
    if not shape:
        raise InputError(f"{path}: expected a shape with at least one dimension, got [].")
    row_bytes = math.prod(shape[1:]) * dtype.itemsize
    entries = manifest.get("parts")
    if entries is None:
        if not path.name.endswith(".bin.json"):
            raise InputError(f"{path}: expected 'parts', a list of files, or a manifest's name that ends in .bin.json.")
        sums = {k: manifest[k] for k in ("crc32", "sha256") if k in manifest}
        entries = [{"file": path.name.removesuffix(".json"), "rows": shape[0]} | sums]
    elif not isinstance(entries, list) or "crc32" in manifest or "sha256" in manifest:
        raise InputError(f"{path}: expected 'parts' to be a list, with the checksums of each part in it.")
    parts = tuple(_manifest_part(path, entry, row_bytes) for entry in entries)
    if (rows := sum(part.num_rows for part in parts)) != shape[0]:
        raise InputError(f"{path}: expected the rows of its parts to be {shape[0]} together, by its shape, got {rows}.")
    return Rows(parts, dtype, shape[1:])


def _manifest_part(manifest: Path, entry: Any, row_bytes: int) -> FilePart:
    if not isinstance(entry, dict) or not isinstance(entry.get("file"), str):
        raise InputError(f"{manifest}: expected each part to be an object with 'file' and 'rows', got {entry!r}.")
    no_others(entry, {"file", "rows", "crc32", "sha256"}, str(manifest))
    (rows,) = _ints([entry.get("rows")], f"{manifest}, rows of {entry['file']}")
    sums = {
        name: check_sum(name, entry[name], digits, manifest)
        for name, digits in (("crc32", 8), ("sha256", 64))
        if entry.get(name) is not None
    }
    part = FilePart(path=inside(manifest.parent, entry["file"]), offset=0, num_rows=rows, row_bytes=row_bytes, **sums)
    size = file_size(part.path)
    if size != part.nbytes:
        raise InputError(
            f"{part.path}: expected {part.nbytes} bytes ({rows} rows of {row_bytes}, by {manifest.name}), got "
            f"{size}: the file is truncated, or the manifest's shape or dtype is wrong."
        )
    return part


def read_parquet(path: Path, columns: Sequence[str]) -> Rows:
    """Read one column of numbers or of lists of numbers, or multiple columns of numbers of the same dtype."""
    types = arrow("Reading Parquet files").types
    with open_parquet(path) as file:
        schema, meta = file.schema_arrow, file.metadata
        kinds = []
        for name in columns:
            kind = schema.field(name).type
            width: tuple[int, ...] = ()
            if types.is_fixed_size_list(kind):
                width, kind = (kind.list_size,), kind.value_type
            elif types.is_list(kind) or types.is_large_list(kind):
                width, kind = (_first_length(file, path, name),), kind.value_type
            if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
                raise InputError(f"{path}, column '{name}': expected numbers or lists of numbers, got {kind}.")
            kinds.append((dtype_of_numpy(np.dtype(kind.to_pandas_dtype()), f"{path}, column '{name}'"), width))
        bounds = np.cumsum([0, *(meta.row_group(g).num_rows for g in range(meta.num_row_groups))])
        num_rows = int(meta.num_rows)
    if len(set(kinds)) > 1 or (len(kinds) > 1 and kinds[0][1]):
        raise InputError(
            f"{path}: expected several columns to be numbers of one dtype, got "
            f"{', '.join(f'{name}: {kind} {list(width)}' for name, (kind, width) in zip(columns, kinds, strict=True))}."
        )
    dtype, width = kinds[0]
    part = ParquetPart(path, tuple(columns), num_rows, tuple(int(b) for b in bounds))
    return Rows([part], dtype, width if len(columns) == 1 else (len(columns),))


def _first_length(file: Any, path: Path, name: str) -> int:
    """Return the length of the first list of a column; reading checks that all lists have it."""
    for batch in file.iter_batches(batch_size=1, columns=[name]):
        if batch.num_rows and batch.column(0).null_count == 0:
            return len(batch.column(0)[0])
    raise InputError(f"{path}, column '{name}': expected lists of numbers, got no list to take the length from.")


def check_sum(name: str, value: Any, digits: int, where: Path) -> str:
    """Return a checksum; InputError if it is malformed."""
    if not isinstance(value, str) or len(value) != digits or any(c not in "0123456789abcdefABCDEF" for c in value):
        raise InputError(f"{where}: expected {name} to have {digits} hexadecimal digits, got {value!r}.")
    return value


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file that a manifest names; InputError if it leads out of the manifest's folder."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise InputError(f"{folder}: its manifest names '{name}': expected a file inside the manifest's folder.")
    return folder / path


def _file(path: Path, offset: int, shape: tuple[int, ...], dtype: torch.dtype, where: str | None = None) -> Rows:
    if not shape:
        raise InputError(f"{where or path}: expected a tensor with rows, got a single number.")
    row_bytes = math.prod(shape[1:]) * dtype.itemsize
    part = FilePart(path=path, offset=offset, num_rows=shape[0], row_bytes=row_bytes).require_size()
    return Rows([part], dtype, tuple(shape[1:]))


def no_others(entry: dict[str, Any], known: Iterable[str], where: str) -> None:
    """Raise InputError for keys that mean nothing."""
    if unknown := set(entry) - set(known):
        raise InputError(f"{where}: expected only {sorted(known)}, got {sorted(unknown)} too. Leave them out.")


def _shape(value: Any, where: str) -> tuple[int, ...]:
    shape = tuple(_ints(value, f"{where}, shape"))
    if math.prod(max(n, 1) for n in shape) >= 1 << 63:
        raise InputError(f"{where}, shape: expected one that a tensor can have, got {list(shape)}.")
    return shape


def _ints(value: Any, where: str) -> list[int]:
    if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
        raise InputError(f"{where}: expected non-negative integers, got {value!r}.")
    return value
