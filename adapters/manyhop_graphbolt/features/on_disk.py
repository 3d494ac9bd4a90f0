"""Tensors and edges in the files of a dataset, and their descriptions in metadata.yaml."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from manyhop import files
from manyhop.errors import InputError, MissingExtraError
from manyhop.files.formats import read_fortran_npy, read_npy
from manyhop.files.tables import Table


@dataclass(frozen=True)
class DatasetFolder:
    """The folder of a dataset, and which files its descriptions may name."""

    path: Path
    allow_outside_paths: bool = False
    """Whether files may be outside of the folder."""

    def file(self, name: object) -> Path:
        """Return the path of a file that metadata.yaml names, relative to the folder or absolute."""
        given = Path(str(name))
        path = self.path / given
        plain = not given.is_absolute() and ".." not in given.parts
        if plain or self.allow_outside_paths or _is_inside(path, self.path):
            return path
        raise InputError(
            f"{self.path / 'metadata.yaml'}: Expected paths that lead into its folder, got '{name}'. Move the file, or "
            "pass allow_outside_paths=True to OnDiskDataset if you trust the description."
        )


def _is_inside(path: Path, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def existing(path: Path) -> Path:
    """Return the path of a file of the dataset; raise InputError if there is no such file."""
    if not path.is_file():
        raise InputError(f"{path}: Expected this file of the dataset, found none. Check the path in metadata.yaml.")
    return path


def read_tensor(path: str | Path, fmt: str, *, in_memory: bool = True) -> Tensor:
    """Read a tensor from a file of ``"numpy"`` or ``"torch"``, unpickling nothing else; ``in_memory=False`` maps it."""
    path = existing(Path(path))
    if fmt == "torch":
        return _read_torch(path, in_memory)
    if fmt != "numpy":
        raise InputError(f"{path}: Unsupported format: {fmt}: expected 'numpy' or 'torch'.")
    fortran = read_fortran_npy(path)
    found = fortran or read_npy(path)
    rows = files.Rows(found.parts, found.dtype, found.row_shape)
    tensor = rows.read() if in_memory else rows.mapped()
    return tensor.t() if fortran else tensor


def read_feature(path: str | Path, fmt: str) -> files.Rows | Tensor:
    """Return the rows of a feature, ``[num_rows, ...]`` of at least two dimensions. Of files of ``numpy.save`` whose
    rows follow each other, nothing is read yet; others are read as a whole."""
    path = Path(path)
    if fmt == "numpy" and path.is_file() and not read_fortran_npy(path):
        found = read_npy(path)
        return files.Rows(found.parts, found.dtype, found.row_shape or (1,))
    tensor = read_tensor(path, fmt)
    return tensor.view(-1, 1) if tensor.dim() == 1 else tensor


def _read_torch(path: Path, in_memory: bool) -> Tensor:
    try:
        tensor = torch.load(path, map_location="cpu", weights_only=True, mmap=not in_memory)
    except Exception as error:  # damaged files raise errors of many kinds
        raise InputError(
            f"{path}: Expected a tensor, written by torch.save, in a file of {path.stat().st_size} bytes, which cannot "
            f"be read: {str(error).splitlines()[0]}"
        ) from error
    if not isinstance(tensor, Tensor):
        raise InputError(f"{path}: Expected one tensor, written by torch.save, got a {type(tensor).__name__}.")
    return tensor


def read_edges(path: str | Path, fmt: str) -> Tensor:
    """Read edges ``[2, num_edges] int64`` from a file of ``numpy.save``, or from a CSV file without a header."""
    path = Path(path)
    if fmt not in ("numpy", "csv"):
        raise InputError(f"{path}: `numpy` or `csv` is expected when reading edges but got `{fmt}`.")
    edges = read_tensor(path, fmt) if fmt == "numpy" else _read_csv(path)
    if edges.dim() != 2 or edges.size(0) != 2 or edges.dtype.is_floating_point or edges.dtype == torch.bool:
        raise InputError(
            f"{path}: The shape of edges should be (2, N), integers, but got {list(edges.shape)} {edges.dtype}."
        )
    return edges.long()


def _read_csv(path: Path) -> Tensor:
    if existing(path).stat().st_size == 0:
        return torch.empty(2, 0, dtype=torch.int64)
    table = Table(path=path, header=False, delimiter=",")
    parts: list[Any] = []
    try:
        for arrays in table.read(table.columns()[:2], dtype="int64"):
            parts.append(np.stack([array.to_numpy(zero_copy_only=False) for array in arrays]))
    except (InputError, MissingExtraError):  # for example blanks between the numbers
        return _read_csv_slowly(path)
    if not parts or len(parts[0]) < 2:
        raise InputError(f"{path}: Expected two columns, source and destination, got fewer.")
    return torch.from_numpy(np.concatenate(parts, axis=1))


def _read_csv_slowly(path: Path) -> Tensor:
    try:
        found = np.loadtxt(path, dtype=np.int64, delimiter=",", usecols=(0, 1), ndmin=2)
    except (ValueError, IndexError) as error:
        raise InputError(f"{path}: Expected two columns of integers, source and destination: {error}") from None
    return torch.from_numpy(np.ascontiguousarray(found.T))


_Kind = TypeVar("_Kind")


class OnDiskFeatureDataFormat(StrEnum):
    """Formats of tensors in files."""

    TORCH = "torch"
    NUMPY = "numpy"


class OnDiskFeatureDataDomain(StrEnum):
    """Domains of features."""

    NODE = "node"
    EDGE = "edge"
    GRAPH = "graph"


@dataclass(kw_only=True)
class OnDiskFeatureData:
    """A feature in a file. Unknown fields are stored in ``extra_fields``."""

    domain: OnDiskFeatureDataDomain
    type: str | None = None
    name: str
    format: OnDiskFeatureDataFormat
    path: str
    in_memory: bool = True
    extra_fields: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.domain = _member(OnDiskFeatureDataDomain, self.domain, f"the domain of feature '{self.name}'")
        self.format = _member(OnDiskFeatureDataFormat, self.format, f"the format of feature '{self.name}'")
        _check_bool(self.in_memory, self.path)


@dataclass(kw_only=True)
class OnDiskTVTSetData:
    """One tensor of a set of items."""

    name: str | None = None
    format: OnDiskFeatureDataFormat
    in_memory: bool = True
    path: str

    def __post_init__(self) -> None:
        self.format = _member(OnDiskFeatureDataFormat, self.format, f"the format of {self.path}")
        _check_bool(self.in_memory, self.path)


@dataclass(kw_only=True)
class OnDiskTVTSet:
    """The items of one type of a training, validation or test set."""

    type: str | None = None
    data: list[OnDiskTVTSetData]

    def __post_init__(self) -> None:
        self.data = [_made(OnDiskTVTSetData, entry, "the data of a set") for entry in self.data]


def sets_of(entries: object) -> list[OnDiskTVTSet]:
    """Return the entries of a training, validation or test set; none for ``None``."""
    if not isinstance(entries, list | None):
        raise InputError(f"Expected a list of the entries of a set in metadata.yaml, got {entries!r}.")
    return [_made(OnDiskTVTSet, entry, "a set") for entry in entries or []]


def feature_of(entry: object) -> OnDiskFeatureData:
    """Return an entry of ``feature_data``."""
    return _made(OnDiskFeatureData, entry, "feature_data")


def _made(kind: type[_Kind], entry: object, where: str) -> _Kind:
    """Convert an entry of YAML to a dataclass."""
    if isinstance(entry, kind):
        return entry
    if not isinstance(entry, Mapping):
        raise InputError(f"Expected each entry of {where} in metadata.yaml to be a mapping, got {entry!r}.")
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]  # all of these are dataclasses
    values = {name: value for name, value in entry.items() if name in known and value is not None}
    extra = {name: value for name, value in entry.items() if name not in known}
    if extra and "extra_fields" not in known:
        raise InputError(f"Expected only {sorted(known)} in {where} in metadata.yaml, also got {sorted(extra)}.")
    if "extra_fields" in known:
        values["extra_fields"] = {**values.get("extra_fields", {}), **extra}
    try:
        return kind(**values)
    except TypeError as error:
        raise InputError(f"{where} in metadata.yaml: {error}, got {dict(entry)}.") from None


def _member(kind: type[Any], value: object, what: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise InputError(f"Expected {what} to be one of {[str(member) for member in kind]}, got {value!r}.") from None


def _check_bool(in_memory: object, path: str) -> None:
    if not isinstance(in_memory, bool):
        raise InputError(f"Expected in_memory of {path} as true or false, got {in_memory!r}.")
