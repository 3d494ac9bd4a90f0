"""CSV and Parquet tables of nodes: an id in each row, and numbers that belong to the node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import GraphError, InputError
from manyhop.files.ids import IdMap, whole_numbers
from manyhop.files.tables import Table, is_table, tensor
from manyhop.graph import NodeType
from manyhop_tools.convert.source import report


class NodeTable:
    """A table of the nodes of one type, with a row for each, in any order. Ids are in the first column if not named."""

    def __init__(self, node_type: NodeType, table: Table, id_column: str | None) -> None:
        if not is_table(table.path):
            raise InputError(f"{table.path}: expected a CSV or Parquet file as a table of nodes. See --node-tensor.")
        self.path: Path = table.path
        self.node_types = [node_type]
        self._table, known = table, table.columns()
        self._id = id_column or known[0]
        if self._id not in known:
            raise InputError(f"{table.path}: expected a column of {known}, got '{self._id}'. See --node-id.")
        self._columns = [name for name in known if name != self._id and self._has_numbers(name)]
        left = [name for name in known if name not in (self._id, *self._columns)]
        if left:
            report(f"{table.path}: columns that are left out, as they hold no numbers: {', '.join(left)}.")

    def ends(self) -> Iterator[list[Any]]:
        """Yield ids of some nodes, as ``pyarrow.Array``."""
        yield from self._table.read([self._id])

    def where(self, end: int) -> str:
        """Return what to call the column of ids."""
        return f"{self.path}, column '{self._id}'"

    def tensors(self, ids: IdMap | None) -> tuple[int, dict[str, Tensor]]:
        """Return the number of nodes, and name -> ``[num_nodes, ...]``, by ``ids``; ``None``: these are nodes.

        Raises:
            GraphError: a node without a row, or with two.
        """
        nodes: list[Tensor] = []
        pieces: dict[str, list[Tensor]] = {name: [] for name in self._columns}
        for arrays in self._table.read([self._id, *self._columns]):
            where = self.where(0)
            nodes.append(
                torch.from_numpy(whole_numbers(arrays[0], where)) if ids is None else ids.lookup(arrays[0], where)
            )
            for name, array in zip(self._columns, arrays[1:], strict=True):
                pieces[name].append(tensor(array, f"{self.path}, column '{name}'"))
        node = torch.cat(nodes) if nodes else torch.empty(0, dtype=torch.int64)
        count = len(node) if ids is None else len(ids)
        order = torch.sort(node, stable=True).indices
        self._check(node[order], count, order, ids)
        return count, {name: torch.cat(values)[order] for name, values in pieces.items() if values}

    def _check(self, nodes: Tensor, count: int, order: Tensor, ids: IdMap | None) -> None:
        """Raise GraphError unless there is a row for each node."""
        if nodes.equal(torch.arange(count)):
            return
        twice = (nodes[1:] == nodes[:-1]).nonzero().view(-1)
        if twice.numel():
            first, second = sorted(order[int(twice[0]) : int(twice[0]) + 2].tolist())
            raise GraphError(f"{self.where(0)}: expected each id once, got duplicates in rows {first} and {second}.")
        if ids is None:
            raise GraphError(
                f"{self.where(0)}: expected the ids 0 to {count - 1} in {count} rows, got {int(nodes[0])} to "
                f"{int(nodes[-1])}. Add the rows that are missing, or map ids: --ids map."
            )
        missing = int((~torch.isin(torch.arange(count), nodes)).nonzero()[0])
        raise GraphError(
            f"{self.where(0)}: expected a row for each id that edges have, got none for {ids.name(missing)!r}. Add "
            f"{count - len(nodes)} rows, or leave these edges out."
        )

    def _has_numbers(self, name: str) -> bool:
        """Return whether the first rows have numbers, or lists of them."""
        for (array,) in self._table.read([name]):
            try:
                tensor(array, name)
            except InputError:
                return False
            return True
        return False
