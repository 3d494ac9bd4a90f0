"""Where the rows of one batch are: the ids of every tensor sorted by the node, cache or result that has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.features.buffers import BufferPool
from manyhop.features.exchange.transfer import Piece
from manyhop.features.requests import RowRequest
from manyhop.features.sources.shards import ShardedRows, Shards


@dataclass
class Table:
    """A tensor and where its rows of this batch go to."""

    source: ShardedRows
    out: Tensor


@dataclass(frozen=True)
class Routes:
    """The ids of one index, and the tensors that are to be read by it."""

    tables: list[Table]
    offsets: list[int]
    """``[num_nodes + 3]``: where the entries of each node, of the cache and of repeated ids begin; then the end."""
    rows: Tensor
    """``[count] int64``: row in that node's part, in the cache, or, of repeated ids, in the result."""
    positions: Tensor
    """``[count] int64``: positions in the result."""

    @property
    def width(self) -> int:
        """Bytes that all tensors together have per id."""
        return sum(table.source.row_bytes for table in self.tables)

    def count(self, place: int) -> int:
        """How many entries a place has."""
        return self.offsets[place + 1] - self.offsets[place]

    def rows_at(self, place: int) -> Tensor:
        """The rows that are wanted of a place."""
        return self.rows[self.offsets[place] : self.offsets[place + 1]]

    def pieces_from(self, node: int) -> list[Piece]:
        """What another node will give: where it belongs."""
        positions = self.positions[self.offsets[node] : self.offsets[node + 1]]
        return [Piece(table.out, positions, table.source.row_bytes) for table in self.tables]

    def pieces_of(self, rows: Tensor) -> list[Piece]:
        """What to give to a rank that wants these rows (``[count] int64``) of this node's part."""
        return [Piece(table.source.rows, rows, table.source.row_bytes) for table in self.tables]

    def copy_local(self, node: int, num_nodes: int) -> None:
        """Copy what is on this node, its cache included."""
        for table in self.tables:
            self._copy(node, table.source.rows, table)
            if table.source.hot_rows is not None:
                self._copy(num_nodes, table.source.hot_rows, table)

    def copy_repeated(self, num_nodes: int) -> None:
        """Copy rows of ids that have come before from where they are in the result. The last step."""
        for table in self.tables:
            self._copy(num_nodes + 1, table.out, table)

    def _copy(self, place: int, source: Tensor, table: Table) -> None:
        from manyhop.features.exchange.cpu_kernels import move_rows

        begin, count = self.offsets[place], self.count(place)
        rows, positions = self.rows.data_ptr() + 8 * begin, self.positions.data_ptr() + 8 * begin
        move_rows(source.data_ptr(), rows, table.out.data_ptr(), positions, count, table.source.row_bytes)


def find_routes(requests: Sequence[RowRequest], pool: BufferPool) -> tuple[list[Routes], list[Tensor]]:
    """Sort the ids of all requests, those of each index once; also gives where the results will be.

    Raises:
        FeatureError: an id is out of range.
    """
    tables: dict[tuple[int, int, int], list[Table]] = {}
    first: dict[tuple[int, int, int], RowRequest] = {}
    outs = []
    for request in requests:
        source: ShardedRows = request.source
        key = (id(request.index), source.num_rows, id(source.hot))
        first.setdefault(key, request)
        outs.append(pool.empty((request.index.numel(), *source.shape[1:]), source.dtype))
        tables.setdefault(key, []).append(Table(source, outs[-1]))
    return [_route(first[key], tables[key], pool) for key in tables], outs


def _route(request: RowRequest, tables: list[Table], pool: BufferPool) -> Routes:
    from manyhop.features.exchange.cpu_kernels import route

    source: ShardedRows = request.source
    index, shards, node, hot = request.index.contiguous(), source.shards, source.world.node, source.hot
    count = index.numel()
    position_bits = count.bit_length()
    if position_bits + shards.num_rows.bit_length() > 63:
        raise FeatureError(f"Expected fewer ids at a time of {shards.num_rows} rows, got {count}. Use smaller batches.")
    table_bits = max(6, position_bits + 1, shards.num_nodes.bit_length() + 1)  # half of it stays empty: fewer steps
    bounds = torch.tensor(shards.bounds)
    offsets = torch.empty(shards.num_nodes + 3, dtype=torch.int64)
    table = pool.empty((1 << table_bits,), torch.int64)
    scratch = pool.empty((2 * count,), torch.int64)
    rows, positions = pool.empty((count,), torch.int64), pool.empty((count,), torch.int64)
    bad = route(
        index.data_ptr(),
        index.dtype == torch.int64,
        count,
        bounds.data_ptr(),
        shards.num_nodes,
        node,
        0 if hot is None else hot.bits.data_ptr(),
        0 if hot is None else hot.before.data_ptr(),
        table.data_ptr(),
        table_bits,
        position_bits,
        scratch.data_ptr(),
        offsets.data_ptr(),
        rows.data_ptr(),
        positions.data_ptr(),
    )
    if bad >= 0:
        raise _out_of_range(request, int(index[bad]), bad, shards)
    return Routes(tables, offsets.tolist(), rows, positions)


def _out_of_range(request: RowRequest, id: int, position: int, shards: Shards) -> FeatureError:
    return FeatureError(
        f"Expected indices in [0, {shards.num_rows}) for {request.name}, got {id} (at position {position}). Give it a "
        "row for every node or edge of the graph."
    )
