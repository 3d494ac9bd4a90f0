"""Compiled: the nodes and edges of a sample are split by type, in their order."""

from __future__ import annotations

import numpy as np

from manyhop.system.numba_kernels import i32, i64, kernel, prefetch, u16

_ZERO, _ONE, _TWO = np.uint64(0), np.uint64(1), np.uint64(2)
_AHEAD = np.uint64(16)  # number of edges between prefetch and use


@kernel("void(uint64, uint64, uint64, uint64, uint64, uint64, uint64, uint64, uint64)")
def split_nodes(
    node: int, n: int, starts: int, num_types: int, bounds: int, num_hops: int, local: int, counts: int, out: int
) -> None:
    """Find the position of each node among the nodes of its type, and copy nodes, as ids of their types.

    Args:
        node, n: ``[n] int64`` ids of all types.
        starts, num_types: ``[num_types] int64``: the first id of each type, ascending.
        bounds, num_hops: ``[num_hops] int64``: where the nodes of each hop end.
        local: ``[n] int64``, written: the positions.
        counts: ``[num_hops, num_types] int64``, added to.
        out: ``[n] int64``, written: type after type.
    """
    nodes, begins, ends, total = i64(node, n), i64(starts, num_types), i64(bounds, num_hops), i64(counts, 1 << 40)
    places, written = i64(local, n), i64(out, n)
    kinds = np.empty(n, np.uint16)
    seen = np.zeros(num_types, np.int64)
    hop = _ZERO
    for i in range(_ZERO, n):
        while i >= ends[hop]:
            hop += _ONE
        k = num_types - _ONE
        while begins[k] > nodes[i]:
            k -= _ONE
        kinds[i], places[i] = k, seen[k]
        seen[k] += 1
        total[hop * num_types + k] += 1
    first = np.cumsum(seen) - seen
    for i in range(_ZERO, n):
        k = kinds[i]
        written[first[k] + places[i]] = nodes[i] - begins[k]


@kernel(
    "void(uint64, uint64, uint64, uint64, uint64, uint64, uint64, uint64, uint64, uint64, uint64, uint64, uint64, "
    "uint64)"
)
def split_edges(
    row: int,
    col: int,
    edge: int,
    n: int,
    types: int,
    num_types: int,
    bounds: int,
    num_hops: int,
    local: int,
    ids: int,
    wide: int,
    counts: int,
    ends_out: int,
    ids_out: int,
) -> None:
    """Copy edges, with ends as places among the nodes of their types, and ids.

    Args:
        row, col, edge, n: ``[n] int64``: ends and positions.
        types, num_types: ``uint16`` type at each position.
        bounds, num_hops, counts: see :func:`split_nodes`, of edges.
        local: of all nodes, see :func:`split_nodes`.
        ids, wide: id at each position, int64 if ``wide``, otherwise int32; 0: positions are ids.
        ends_out: ``[2 * n] int64``, written: for each type all rows, then all columns.
        ids_out: ``[n] int64``, written.
    """
    rows, cols, edges, places = i64(row, n), i64(col, n), i64(edge, n), i64(local, 1 << 40)
    table, hop_ends, total = u16(types, 1 << 40), i64(bounds, num_hops), i64(counts, 1 << 40)
    ids32, ids64, both, written = i32(ids, 1 << 40), i64(ids, 1 << 40), i64(ends_out, 2 * n), i64(ids_out, n)
    kinds = np.empty(n, np.uint16)
    size = np.zeros(num_types, np.int64)
    hop = _ZERO
    for i in range(_ZERO, n):
        while i >= hop_ends[hop]:
            hop += _ONE
        prefetch(types + _TWO * np.uint64(edges[min(i + _AHEAD, n - _ONE)]))
        k = table[edges[i]]
        kinds[i] = k
        size[k] += 1
        total[hop * num_types + np.uint64(k)] += 1
    begin = np.cumsum(size) - size
    at = begin.copy()  # next free position of each type
    width = np.uint64(8) if wide != _ZERO else np.uint64(4)
    for i in range(_ZERO, n):
        k, e = kinds[i], edges[i]
        prefetch(ids + width * np.uint64(edges[min(i + _AHEAD, n - _ONE)]))
        to = at[k]
        both[begin[k] + to] = places[rows[i]]
        both[begin[k] + to + size[k]] = places[cols[i]]
        if ids == _ZERO:
            written[to] = e
        elif wide != _ZERO:
            written[to] = ids64[e]
        else:
            written[to] = ids32[e]
        at[k] += 1
