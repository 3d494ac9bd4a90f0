"""Features by id, stores of multiple, and the files of a dataset with their descriptions in metadata.yaml."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from manyhop import files
from manyhop.arguments import as_ids
from manyhop.errors import FeatureError, InputError
from manyhop.features import RowRequest
from manyhop.files.formats import read_fortran_npy, read_npy

FeatureKey = tuple[str, str | None, str]
"""Domain (``"node"``, ``"edge"`` or ``"graph"``), node or edge type (``None``: the graph has but one), name."""

Gather: TypeAlias = Callable[[list[RowRequest]], list[Any]]
"""Rows of multiple requests, as :func:`manyhop.features.gather` returns them."""

ReadRequest = tuple[str, str | None, str, Tensor]
"""Domain, type, name, and ``[count]`` integer row numbers."""


class Feature:
    """Rows of numbers, one per node or edge. Subclasses define where they reside."""

    def read(self, ids: Tensor | None = None) -> Tensor:
        """Return the rows ``ids`` (``[count]`` integer; ``None``: all) as ``[count, ...]``."""
        raise NotImplementedError

    def size(self) -> torch.Size:
        """Return the shape of one row."""
        raise NotImplementedError

    def count(self) -> int:
        """Return the number of rows."""
        raise NotImplementedError

    def update(self, value: Tensor, ids: Tensor | None = None) -> None:
        """Set the rows ``ids`` to ``value``, ``[count, ...]``; ``None``: all."""
        raise NotImplementedError

    def metadata(self) -> dict[str, object]:
        """Return further metadata of the feature."""
        return {}

    def table(self) -> Any:
        """Return the tensor whose rows ``read`` returns, or the object that exchanges them, or ``None``."""
        return None

    def source(self, ids: Tensor) -> Any:
        """Return the source of these rows for :func:`manyhop.features.gather`; ``None``: only ``read`` returns them."""
        return self.table()


class FeatureStore:
    """Features by domain, type and name. Subclasses define ``read``."""

    def read(self, domain: str, type_name: str | None, feature_name: str, ids: Tensor | None = None) -> Tensor:
        """Return the rows ``ids`` of a feature; ``None``: all."""
        raise NotImplementedError


class BasicFeatureStore(FeatureStore):
    """A dictionary of features.

    Args:
        features: (domain, type, name) -> a :class:`Feature`, or another object with its methods.

    Raises:
        InputError: keys of another form, or features without a method ``read``, such as plain tensors.
    """

    def __init__(self, features: Mapping[FeatureKey, object]) -> None:
        self._features: dict[FeatureKey, Any] = {}
        for key, feature in features.items():
            self[key] = feature

    def __getitem__(self, key: FeatureKey) -> Any:
        """One feature."""
        try:
            return self._features[key]
        except KeyError:
            domain, type_name, name = key
            of = f" of {domain} type '{type_name}'" if type_name is not None else f" of the {domain}s"
            raise FeatureError(f"Expected one of {self.keys()}, got '{name}'{of}. Add it to the store.") from None

    def __setitem__(self, key: FeatureKey, feature: object) -> None:
        if not isinstance(key, tuple) or len(key) != 3:
            raise InputError(f"Expected features by (domain, type, name), such as ('node', None, 'feat'), got {key!r}.")
        if not callable(getattr(feature, "read", None)):
            remedy = ": put it into a TorchBasedFeature(tensor)" if isinstance(feature, Tensor) else ""
            raise InputError(
                f"Expected a Feature, or another object with a method read, for {key!r}, got a "
                f"{type(feature).__name__}{remedy}"
            )
        self._features[key] = feature

    def __contains__(self, key: object) -> bool:
        return key in self._features

    def __len__(self) -> int:
        """Return the number of features."""
        return len(self._features)

    def keys(self) -> list[FeatureKey]:
        """Return the keys of all features."""
        return list(self._features)

    def items(self) -> list[tuple[FeatureKey, Any]]:
        """Return the keys and features."""
        return list(self._features.items())

    def read(self, domain: str, type_name: str | None, feature_name: str, ids: Tensor | None = None) -> Tensor:
        """Return the rows ``ids`` of a feature; ``None``: all.

        Raises:
            FeatureError: there is no such feature, or no such row.
        """
        rows: Tensor = self[domain, type_name, feature_name].read(ids)
        return rows

    def size(self, domain: str, type_name: str | None, feature_name: str) -> torch.Size:
        """Return the shape of one row of a feature."""
        size: torch.Size = self[domain, type_name, feature_name].size()
        return size

    def count(self, domain: str, type_name: str | None, feature_name: str) -> int:
        """Return the number of rows of a feature."""
        return int(self[domain, type_name, feature_name].count())

    def metadata(self, domain: str, type_name: str | None, feature_name: str) -> dict[str, object]:
        """Return further metadata of a feature."""
        metadata: dict[str, object] = self[domain, type_name, feature_name].metadata()
        return metadata

    def update(
        self, domain: str, type_name: str | None, feature_name: str, value: Tensor, ids: Tensor | None = None
    ) -> None:
        """Set the rows ``ids`` of a feature; ``None``: all."""
        self[domain, type_name, feature_name].update(value, ids)


def read_by(store: Any, requests: Sequence[ReadRequest], gather_rows: Gather) -> list[Tensor]:
    """Return rows of multiple features: ``gather_rows`` gathers the features of this package at once."""
    results: list[Any] = [None] * len(requests)
    gathered: dict[int, RowRequest] = {}
    indices: dict[int, Tensor] = {}
    for i, (domain, type_name, name, ids) in enumerate(requests):
        index = indices.setdefault(id(ids), row_numbers(ids))
        feature = own_feature(store, (domain, type_name, name))
        source = None if feature is None else feature.source(index)
        if source is None:
            results[i] = store.read(domain, type_name, name, ids)
        else:
            gathered[i] = RowRequest(source, index, name=title_of(domain, type_name, name))
    for i, found in zip(gathered, gather_rows(list(gathered.values())), strict=True):
        results[i] = found
    return results


def own_feature(store: Any, key: FeatureKey) -> Feature | None:
    """Return a feature of a store, if the store reads it by the feature's own ``read``."""
    plain = isinstance(store, BasicFeatureStore) and type(store).read is BasicFeatureStore.read
    feature = store[key] if plain else None
    return feature if isinstance(feature, Feature) else None


@cache
def title_of(domain: str, type_name: str | None, name: str) -> str:
    """Return the name of a feature in errors and statistics."""
    return f"{domain} feature '{name}'" + (f" of type '{type_name}'" if type_name is not None else "")


def row_numbers(ids: object) -> Tensor:
    """Return row numbers for gathering: integers of other widths become int64."""
    if isinstance(ids, Tensor) and ids.dtype == torch.uint8:  # GraphBolt's masks are bool
        ids = ids.long()
    return as_ids("ids", ids, error=FeatureError)


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
        if self.domain not in ("node", "edge", "graph"):
            raise InputError(f"Expected a domain of 'node', 'edge', 'graph' for '{self.name}', got {self.domain!r}.")
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
    if fmt not in ("torch", "numpy"):
        raise InputError(f"Expected the format of {path} to be one of ['torch', 'numpy'], got {fmt!r}.")
    if not isinstance(in_memory, bool):
        raise InputError(f"Expected in_memory of {path} as true or false, got {in_memory!r}.")
