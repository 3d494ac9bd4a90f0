"""The contents of metadata.yaml, as dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeVar

from manyhop.errors import InputError

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


class OnDiskGraphTopologyType(StrEnum):
    """Kinds of graphs in files."""

    FUSED_CSC_SAMPLING = "FusedCSCSamplingGraph"


@dataclass(kw_only=True)
class OnDiskFeatureData:
    """A feature in a file. What is not known here goes to ``extra_fields``."""

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


@dataclass(kw_only=True)
class OnDiskGraphTopology:
    """A graph in a file."""

    type: OnDiskGraphTopologyType
    path: str

    def __post_init__(self) -> None:
        self.type = _member(OnDiskGraphTopologyType, self.type, "the type of graph_topology")


@dataclass(kw_only=True)
class OnDiskTaskData:
    """A task: its sets, and further fields, in ``extra_fields`` (its name, the number of classes, ...)."""

    train_set: list[OnDiskTVTSet] = field(default_factory=list)
    validation_set: list[OnDiskTVTSet] = field(default_factory=list)
    test_set: list[OnDiskTVTSet] = field(default_factory=list)
    extra_fields: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("train_set", "validation_set", "test_set"):
            setattr(self, name, sets_of(getattr(self, name)))


@dataclass(kw_only=True)
class OnDiskMetaData:
    """The whole of metadata.yaml, the graph being in a file of its own."""

    dataset_name: str | None = None
    graph_topology: OnDiskGraphTopology | None = None
    feature_data: list[OnDiskFeatureData] = field(default_factory=list)
    tasks: list[OnDiskTaskData] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.graph_topology is not None:
            self.graph_topology = _made(OnDiskGraphTopology, self.graph_topology, "graph_topology")
        self.feature_data = [_made(OnDiskFeatureData, entry, "feature_data") for entry in self.feature_data or []]
        self.tasks = [_made(OnDiskTaskData, entry, "tasks") for entry in self.tasks or []]


def sets_of(entries: object) -> list[OnDiskTVTSet]:
    """Return the entries of a training, validation or test set; none for ``None``.

    Raises:
        InputError: one lacks something, or has something unknown.
    """
    if not isinstance(entries, list | None):
        raise InputError(f"Expected a list of the entries of a set in metadata.yaml, got {entries!r}.")
    return [_made(OnDiskTVTSet, entry, "a set") for entry in entries or []]


def feature_of(entry: object) -> OnDiskFeatureData:
    """An entry of ``feature_data``.

    Raises:
        InputError: it lacks something, or has something unknown.
    """
    return _made(OnDiskFeatureData, entry, "feature_data")


def _made(kind: type[_Kind], entry: object, where: str) -> _Kind:
    """A dataclass from what YAML gives."""
    if isinstance(entry, kind):
        return entry
    if not isinstance(entry, Mapping):
        raise InputError(f"Expected each entry of {where} in metadata.yaml to be a mapping, got {entry!r}.")
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]  # all of these are dataclasses
    values = {name: value for name, value in entry.items() if name in known and value is not None}
    extra = {name: value for name, value in entry.items() if name not in known}
    if extra and "extra_fields" not in known:
        raise InputError(f"Expected only {sorted(known)} in {where} in metadata.yaml, got {sorted(extra)} too.")
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
