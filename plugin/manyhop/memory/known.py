"""The one record of each tensor and topology, for all loaders and stores of the process."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any

from torch.utils.weak import WeakIdKeyDictionary


class Known:
    """Facts about a tensor, an array, rows in parts, a topology or a graph, as long as that exists."""

    __slots__ = ("checksum", "compressed", "copies", "engines", "file_cache", "held", "store_place", "tables")

    def __init__(self) -> None:
        self.checksum: tuple[int, int] | None = None
        """A version of the tensor, and the checksum of its values."""
        self.compressed: tuple[int, Any, Any] | None = None
        """A version of an edge list, and its columns in CSC."""
        self.copies: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()
        """The same elsewhere, by place, as long as it is used."""
        self.engines: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        """The engines that sample a placed graph, by spec."""
        self.file_cache: Any = None
        """The rows of a mapped file that memory keeps."""
        self.held: Any = None
        """The place of rows that belong to a store."""
        self.store_place: weakref.ref[Any] | None = None
        """The ``TopologyPlace`` of the store of a topology."""
        self.tables: Any = None
        """Topologies built for a graph."""


def known(value: Any) -> Known:
    """Return the record of a value; create it if needed."""
    record: Known = known_if_any(value) or _records.setdefault(value, Known())  # type: ignore[no-untyped-call]
    return record


def known_if_any(value: Any) -> Known | None:
    """Return the record of a value; ``None``: nothing is known of it."""
    try:
        record: Known | None = _records.get(value)  # type: ignore[no-untyped-call]
    except TypeError:  # nothing refers weakly to a value of this class
        return None
    return record


def records() -> list[Known]:
    """Return all records."""
    return list(_records.values())  # type: ignore[no-untyped-call]


_records: WeakIdKeyDictionary = WeakIdKeyDictionary()
