"""Features in files: the folder of a dataset, its descriptions in metadata.yaml, and stores of what they name."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from manyhop import files
from manyhop.errors import InputError
from manyhop.files.formats import read_fortran_npy, read_npy
from manyhop.memory.places import Place
from manyhop.memory.stores import StoreExchange, rows_in, store_device
from manyhop_graphbolt.features.feature import BasicFeatureStore, FeatureKey, TorchBasedFeature, placed_rows
from manyhop_graphbolt.types import GBWarning, show


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


class DiskBasedFeature(TorchBasedFeature):
    """A feature whose rows remain in a mapped file of ``numpy.save`` and are read from the disk.

    Args:
        path: the file. An array of one dimension is one column.
        metadata: what else is known of it.
        num_threads: a hint; the threads that gather rows read them.

    Raises:
        InputError: a missing, damaged or invalid file.
        FeatureError: no dimension.
    """

    def __init__(
        self, path: str | os.PathLike[str], metadata: dict[str, object] | None = None, num_threads: int | None = None
    ) -> None:
        super().__init__(read_feature(Path(path), "numpy", in_memory=False), metadata)
        self._mapped = self._tensor  # until all rows are replaced

    def read_into_memory(self) -> TorchBasedFeature:
        """Return a feature with a copy of all rows in memory."""
        return TorchBasedFeature(self._of_this_rank("copy").clone(), self._metadata)

    def pin_memory_(self) -> Self:
        """Leave rows that are in the file there, with a warning; return the feature."""
        return self if self._stays("pin") else super().pin_memory_()

    def to(self, device: Any) -> Self:
        """Return a copy on another device; rows that are in the file remain there, with a warning."""
        in_place = str(device) == "cpu" and self._tensor is self._mapped
        return self if in_place or self._stays(f"move to {device}") else super().to(device)

    def _stays(self, what: str) -> bool:
        if self._tensor is not self._mapped:
            return False
        warnings.warn(
            f"Expected a feature in memory to {what}, got a {type(self).__name__}: its rows remain in the file. Call "
            "read_into_memory() first, or set in_memory: true in metadata.yaml.",
            GBWarning,
            stacklevel=3,
        )
        return True


class TorchBasedFeatureStore(BasicFeatureStore):
    """Features from files.

    Args:
        feat_data: the files; ``in_memory=False`` maps a file (as a :class:`DiskBasedFeature` for ``numpy``).
        placement: see :class:`TorchBasedFeature`; ``"process"``: by ``in_memory``.
        device: this rank's GPU, for places of GPUs.

    Raises:
        InputError: a file is missing, damaged or invalid, or a feature occurs twice; an unknown placement, or
            a missing GPU.
        RankError: the ranks do not have the same files, or are late.
    """

    def __init__(
        self,
        feat_data: Iterable[OnDiskFeatureData],
        *,
        placement: Place = "process",
        device: torch.device | str | None = None,
    ) -> None:
        features: dict[FeatureKey, TorchBasedFeature] = {}
        place = rows_in(placement, store_device(placement, device, None), None)
        exchange = StoreExchange(place)
        for spec in feat_data:
            key = spec.domain, spec.type, spec.name
            if key in features:
                raise InputError(f"Expected each feature once, got {key} twice. Rename one of them.")
            if placement != "mapped" and (spec.in_memory or placement != "process"):
                rows = placed_rows(read_feature(spec.path, spec.format), placement, place)
                features[key] = TorchBasedFeature(rows, spec.extra_fields)
            elif spec.format == "numpy":
                features[key] = DiskBasedFeature(spec.path, spec.extra_fields)
            else:
                mapped = read_feature(spec.path, spec.format, in_memory=False)
                features[key] = TorchBasedFeature(mapped, spec.extra_fields)
            features[key].exchange = exchange
        super().__init__(features)

    def pin_memory_(self) -> Self:
        """Pin the memory of all features that are not in files; return the store."""
        for feature in self._features.values():
            feature.pin_memory_()
        return self

    def is_pinned(self) -> bool:
        """Return whether a GPU can read all features."""
        return all(feature.is_pinned() for feature in self._features.values())

    def to(self, device: torch.device | str) -> Self:
        """Return a copy on another device, or in pinned memory (``"pinned"``)."""
        other = copy.copy(self)
        other._features = {key: feature.to(device) for key, feature in self._features.items()}
        return other

    def __repr__(self) -> str:
        return show(type(self).__name__, {"features": self._features})
