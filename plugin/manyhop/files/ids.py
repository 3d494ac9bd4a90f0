"""Ids that are texts, or whole numbers in any range -> 0, 1, 2, ..."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.files.formats import open as open_rows
from manyhop.files.parquet import arrow, open_parquet, parquet_columns
from manyhop.files.tensor_file import write, writing


def is_text(array: Any) -> bool:
    """Return whether a ``pyarrow.Array`` of ids holds texts."""
    types = arrow("Mapping ids").types
    kind = array.type.value_type if types.is_dictionary(array.type) else array.type
    return bool(types.is_string(kind) or types.is_large_string(kind))


def whole_numbers(array: Any, where: str) -> npt.NDArray[np.int64]:
    """Return a ``pyarrow.Array`` of integer ids as an array; InputError for anything else."""
    if not arrow("Mapping ids").types.is_integer(array.type):
        raise InputError(f"{where}: expected ids that are integers or texts, got {array.type}: name another column.")
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    if values.dtype == np.uint64 and values.size and values.max() > np.iinfo(np.int64).max:
        raise InputError(f"{where}: expected ids below 2^63, got {values.max()}: convert the column to texts.")
    return values.astype(np.int64)


class IdCollector:
    """Collect unique ids in pieces."""

    def __init__(self) -> None:
        self._pieces: list[Any] = []
        self._pending = 0
        self._kept = 0
        self._text: bool | None = None

    def add(self, array: Any, where: str) -> None:
        """Add a ``pyarrow.Array`` of ids, all texts or all integers."""
        text = is_text(array)
        if self._text not in (None, text):
            raise InputError(
                f"{where}: holds {'texts' if text else 'integers'}, another column or file of the same node type "
                f"{'integers' if text else 'texts'}: use one kind of ids per node type."
            )
        self._text = text
        piece = array.cast("large_string").unique() if text else np.unique(whole_numbers(array, where))
        self._pieces.append(piece)
        self._pending += len(piece)
        if self._pending > max(self._kept, 1 << 20):  # seldom enough that each id is looked at a few times only
            self._merge()

    def finish(self) -> IdMap:
        """Return the map of all ids, in ascending order."""
        self._merge()
        return IdMap(self._pieces[0] if self._pieces else np.empty(0, np.int64))

    def _merge(self) -> None:
        if self._text:
            merged = arrow("Mapping ids").concat_arrays(self._pieces).unique().sort()
        else:
            merged = np.unique(np.concatenate(self._pieces)) if self._pieces else np.empty(0, np.int64)
        self._pieces, self._pending, self._kept = [merged], 0, len(merged)


class SourceIds:
    """The id that each node had at its source: ``[count]`` integers (numpy) or texts (``pyarrow.Array``)."""

    def __init__(self, ids: Any) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    def name(self, node: int) -> Any:
        """Return the id of one node."""
        value = self._ids[node]
        return value.item() if isinstance(self._ids, np.ndarray) else value.as_py()

    @classmethod
    def load(cls, path: Path) -> SourceIds:
        """Read a file that :meth:`save` wrote."""
        if path.suffix != ".parquet":
            return cls(open_rows(path).read().numpy())
        if "id" not in (known := parquet_columns(path)):
            raise InputError(f"{path}: expected ids of nodes in a column 'id', got {known}.")
        with open_parquet(path) as file:
            return cls(file.read(["id"]).column("id").combine_chunks())

    def taken(self, order: Tensor) -> SourceIds:
        """Return the ids of these nodes, ``[n] int64``."""
        return SourceIds(self._ids.take(order.numpy()))

    def save(self, path: Path) -> Path:
        """Write the ids: to ``path``, or texts to a Parquet file with its name. Return the path."""
        if isinstance(self._ids, np.ndarray):
            write(path, torch.from_numpy(self._ids))
            return path
        path = path.with_suffix(".parquet")
        table = arrow("Mapping ids").table({"id": self._ids})
        with writing(path, table.nbytes):
            arrow("Mapping ids", "pyarrow.parquet").write_table(table, path)
        return path


class IdMap(SourceIds):
    """Ids of nodes at their source, in ascending order: the position of an id is the node."""

    def lookup(self, array: Any, where: str) -> Tensor:
        """Return ``[n] int64``: the nodes of the known ids in a ``pyarrow.Array``."""
        if isinstance(self._ids, np.ndarray):
            return torch.from_numpy(np.searchsorted(self._ids, whole_numbers(array, where)))
        compute = arrow("Mapping ids", "pyarrow.compute")
        coded = array.cast("large_string").dictionary_encode()
        nodes = compute.index_in(coded.dictionary, value_set=self._ids).to_numpy(zero_copy_only=False)
        return torch.from_numpy(nodes.astype(np.int64)[coded.indices.to_numpy(zero_copy_only=False)])
