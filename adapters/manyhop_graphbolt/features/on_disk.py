"""Tensors and edges in the files of a dataset, and their descriptions in metadata.yaml."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop import files
from manyhop.errors import InputError
from manyhop.files.formats import read_fortran_npy, read_npy


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
        inside = plain or Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.path))
        if inside or self.allow_outside_paths:
            return path
        raise InputError(
            f"{self.path / 'metadata.yaml'}: Expected paths that lead into its folder, got '{name}'. Move the file, or "
            "pass allow_outside_paths=True to OnDiskDataset if you trust the description."
        )


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
    rows = fortran or read_npy(path)
    tensor = rows.read() if in_memory else rows.mapped()
    return tensor.t() if fortran else tensor


def read_feature(path: str | Path, fmt: str, *, in_memory: bool = True) -> files.Rows | Tensor:
    """Return the rows of a feature, ``[num_rows, ...]`` of at least two dimensions. Of files of ``numpy.save`` whose
    rows follow each other, nothing is read yet; others are read as a whole; ``in_memory=False`` maps them."""
    path = Path(path)
    if in_memory and fmt == "numpy" and path.is_file() and not read_fortran_npy(path):
        rows = read_npy(path)
        return files.Rows(rows.parts, rows.dtype, rows.shape[1:] or (1,))
    tensor = read_tensor(path, fmt, in_memory=in_memory)
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
    edges = read_tensor(path, fmt) if fmt == "numpy" else _read_csv(existing(path))
    if edges.dim() != 2 or edges.size(0) != 2 or edges.dtype.is_floating_point or edges.dtype == torch.bool:
        raise InputError(
            f"{path}: The shape of edges should be (2, N), integers, but got {list(edges.shape)} {edges.dtype}."
        )
    return edges.long()


def _read_csv(path: Path) -> Tensor:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "loadtxt: input contained no data")
            found = np.loadtxt(path, dtype=np.int64, delimiter=",", usecols=(0, 1), ndmin=2)
    except (ValueError, IndexError) as error:
        raise InputError(f"{path}: Expected two columns of integers, source and destination: {error}") from None
    return torch.from_numpy(np.ascontiguousarray(found.T))


@dataclass(kw_only=True)
class OnDiskFeatureData:
    """A feature in a file. Unknown fields are stored in ``extra_fields``."""

    domain: str
    type: str | None = None
    name: str
    format: str
    path: str
    in_memory: bool = True
    extra_fields: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice(f"the domain of feature '{self.name}'", self.domain, ("node", "edge", "graph"))
        check_file(self.format, self.in_memory, self.path)


def feature_of(entry: object) -> OnDiskFeatureData:
    """Return an entry of ``feature_data``."""
    if isinstance(entry, OnDiskFeatureData):
        return entry
    known = {one.name for one in fields(OnDiskFeatureData)}
    extra = set(entry) - known if isinstance(entry, Mapping) else set()
    found = entry_of(entry, "feature_data", ("domain", "name", "format", "path"), {*known, *extra})
    more = {name: found.pop(name) for name in extra}
    found["extra_fields"] = {**(found["extra_fields"] or {}), **more}
    return OnDiskFeatureData(**{name: value for name, value in found.items() if value is not None})


def entry_of(entry: object, where: str, needed: Collection[str], optional: Collection[str] = ()) -> dict[str, Any]:
    """Return an entry of metadata.yaml, with ``None`` for what it may have and has not.

    Raises:
        InputError: no mapping; something needed is missing, or there is something unknown.
    """
    if not isinstance(entry, Mapping):
        raise InputError(f"Expected each entry of {where} in metadata.yaml to be a mapping, got {entry!r}.")
    known = sorted({*needed, *optional})
    if unknown := sorted(set(entry) - set(known)):
        raise InputError(f"Expected only {known} in {where} in metadata.yaml, also got {unknown}.")
    for name in needed:
        if entry.get(name) is None:
            raise InputError(f"Expected '{name}' in each entry of {where} in metadata.yaml, got {entry!r}.")
    return dict.fromkeys(known) | dict(entry)


def check_file(fmt: object, in_memory: object, path: object) -> None:
    """Raise InputError for an unknown format of a tensor's file, or for a word in place of true and false."""
    check_choice(f"the format of {path}", fmt, ("torch", "numpy"))
    if not isinstance(in_memory, bool):
        raise InputError(f"Expected in_memory of {path} as true or false, got {in_memory!r}.")


def check_choice(what: str, value: object, choices: Collection[str]) -> None:
    """Raise InputError unless a value is one of some."""
    if value not in choices:
        raise InputError(f"Expected {what} to be one of {list(choices)}, got {value!r}.")
