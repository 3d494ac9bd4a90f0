"""Compiled: the nodes and edges of a sample are split by type, in their order.

Each part is done in two passes: kinds and counts first, then, with memory of the right sizes, the copies.
"""

from __future__ import annotations

import numpy as np

from manyhop.system.numba_kernels import i32, i64, kernel, prefetch, u16

_ZERO, _ONE, _TWO = np.uint64(0), np.uint64(1), np.uint64(2)
_AHEAD = np.uint64(16)  # number of edges between prefetch and use


@kernel("void(uint64, uint64, uint64, uint64, uint64, uint64, uint64, uint64, uint64)")
def count_nodes(
    node: int, n: int, starts: int, num_types: int, bounds: int, num_hops: int, kind: int, local: int, counts: int
) -> None:
    """Find the type of each node and its position among the nodes of this type.

    Args:
        node, n: ``[n] int64`` ids of all types.
        starts, num_types: ``[num_types] int64``: the first id of each type, ascending.
        bounds, num_hops: ``[num_hops] int64``: where the nodes of each hop end.
        kind: ``[n] uint16``, written.
        local: ``[n] int64``, written.
        counts: ``[num_hops, num_types] int64``, added to.
    """
    nodes, begins, ends, total = i64(node, n), i64(starts, num_types), i64(bounds, num_hops), i64(counts, 1 << 40)
    kinds, places = u16(kind, n), i64(local, n)
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


@kernel("void(uint64, uint64, uint64, uint64, uint64, uint64, uint64)")
def copy_nodes(node: int, n: int, starts: int, kind: int, local: int, places: int, out: int) -> None:
    """Copy nodes, as ids of their types.

    Args:
        node, n, starts, kind, local: see :func:`count_nodes`.
        places: ``[num_types] int64``: where the nodes of each type begin in ``out``.
        out: ``[n] int64``, written.
    """
    nodes, begins, kinds, found = i64(node, n), i64(starts, 1 << 16), u16(kind, n), i64(local, n)
    first, written = i64(places, 1 << 16), i64(out, n)
    for i in range(_ZERO, n):
        k = kinds[i]
        written[first[k] + found[i]] = nodes[i] - begins[k]


@kernel("void(uint64, uint64, uint64, uint64, uint64, uint64, uint64, uint64)")
def count_edges(
    edge: int, n: int, types: int, num_types: int, bounds: int, num_hops: int, kind: int, counts: int
) -> None:
    """Find the type of each edge.

    Args:
        edge, n: ``[n] int64`` positions.
        types, num_types: ``uint16`` type at each position.
        bounds, num_hops, kind, counts: see :func:`count_nodes`, of edges.
    """
    edges, table, ends = i64(edge, n), u16(types, 1 << 40), i64(bounds, num_hops)
    kinds, total = u16(kind, n), i64(counts, 1 << 40)
    hop = _ZERO
    for i in range(_ZERO, n):
        while i >= ends[hop]:
            hop += _ONE
        prefetch(types + _TWO * np.uint64(edges[min(i + _AHEAD, n - _ONE)]))
        k = table[edges[i]]
        kinds[i] = k
        total[hop * num_types + np.uint64(k)] += 1


@kernel("void(uint64, uint64, uint64, uint64, uint64, uint64, uint64, uint64, uint64, uint64, uint64, uint64)")
def copy_edges(
    row: int,
    col: int,
    edge: int,
    n: int,
    kind: int,
    local: int,
    sizes: int,
    num_types: int,
    ids: int,
    wide: int,
    ends_out: int,
    ids_out: int,
) -> None:
    """Copy edges, with ends as places among the nodes of their types, and ids.

    Args:
        row, col, edge, n: ``[n] int64``: ends and positions.
        kind: see :func:`count_edges`.
        local: of all nodes, see :func:`count_nodes`.
        sizes, num_types: ``[num_types] int64``: how many edges of each type there are.
        ids, wide: id at each position, int64 if ``wide``, otherwise int32; 0: positions are ids.
        ends_out: ``[2 * n] int64``, written: for each type all rows, then all columns.
        ids_out: ``[n] int64``, written.
    """
    rows, cols, edges, kinds, places = i64(row, n), i64(col, n), i64(edge, n), u16(kind, n), i64(local, 1 << 40)
    count, ids32, ids64 = i64(sizes, num_types), i32(ids, 1 << 40), i64(ids, 1 << 40)
    both, written = i64(ends_out, 2 * n), i64(ids_out, n)
    at = np.zeros(num_types, np.int64)  # next free position of each type
    begin = np.zeros(num_types, np.int64)
    for k in range(_ONE, num_types):
        begin[k] = begin[k - _ONE] + count[k - _ONE]
    width = np.uint64(8) if wide != _ZERO else np.uint64(4)
    for i in range(_ZERO, n):
        k, e = kinds[i], edges[i]
        prefetch(ids + width * np.uint64(edges[min(i + _AHEAD, n - _ONE)]))
        to = begin[k] + at[k]
        both[begin[k] + to] = places[rows[i]]
        both[begin[k] + to + count[k]] = places[cols[i]]
        if ids == _ZERO:
            written[to] = e
        elif wide != _ZERO:
            written[to] = ids64[e]
        else:
            written[to] = ids32[e]
        at[k] += 1
