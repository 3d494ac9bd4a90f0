"""Tensors and topology in their places: put there once, read by all loaders of the process."""

from manyhop.stores.checksums import WHOLE_ONCE, checksum
from manyhop.stores.copies import Copy, Version, is_movable
from manyhop.stores.places import GPURows, StorePlace, as_it_is, check_place, rows_in
from manyhop.stores.rows_of_nodes import NodeRows

__all__ = [
    "WHOLE_ONCE",
    "Copy",
    "GPURows",
    "NodeRows",
    "StorePlace",
    "Version",
    "as_it_is",
    "check_place",
    "checksum",
    "is_movable",
    "rows_in",
]
