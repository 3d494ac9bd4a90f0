"""All edges among the nodes of a batch, compiled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling.cpu.kernels import edges_type, found_type, mode_type, nodes_type
from manyhop.sampling.cpu.kernels.hop import fetch_neighbors
from manyhop.sampling.cpu.kernels.picks import choose, is_excluded
from manyhop.sampling.cpu.kernels.random import fold
from manyhop.sampling.cpu.kernels.relabel import find, hash_of, hash_trees
from manyhop.sampling.cpu.tables import CHUNK, Edges, Found, Ints, Mode, Modes, Nodes
from manyhop.sampling.random import Use
from manyhop.system.numba_kernels import AHEAD, helper, i32, i64, int64, kernel, prefetch, u32, u64, uint64

_ONE, _FOUR, _EIGHT = np.uint64(1), np.uint64(4), np.uint64(8)
_LOW, _SIX, _WORD, _FILTER = (np.uint64(x) for x in (0xFFFFFFFF, 6, 63, 24))

_EDGES = int(Use.HGT_EDGES)

U64s = npt.NDArray[np.uint64]


@helper
def _collect(edges: Edges, nodes: Nodes, mode: Mode, t: int, state: Ints) -> int:
    """Store up to CHUNK edges of the columns, beginning at ``state``; return their number."""
    dst = edges[t].dst
    count = nodes[dst].count
    node, colptr = u64(nodes[dst].node, count), u64(edges[t].colptr, 1 << 62)
    position, dst_node = u64(mode.position, CHUNK), u32(mode.dst_node, CHUNK)
    base = np.uint64(edges[t].colptr)
    column, offset, m = state[1], state[2], 0
    while column < count and m < CHUNK:
        prefetch(base + _EIGHT * node[min(column + AHEAD, count - 1)])
        v = node[column]
        start = colptr[v] + np.uint64(offset)
        n = min(np.int64(colptr[v + _ONE] - start), CHUNK - m)
        for j in range(n):
            position[m + j] = start + np.uint64(j)
            dst_node[m + j] = column
        m += n
        if start + np.uint64(n) == colptr[v + _ONE]:
            column, offset = column + 1, 0
        else:
            offset += n
    state[1], state[2] = column, offset
    return m


@helper
def batch_key(use: int, request_key: U64s) -> np.uint64:
    """Return the key of a use in a batch."""
    key = fold(np.uint64(0), np.uint64(use))
    for part in request_key:
        key = fold(key, part)
    return key


@helper
def _collect_chosen(edges: Edges, nodes: Nodes, mode: Mode, t: int, limit: int, key: np.uint64, state: Ints) -> int:
    """Store up to CHUNK chosen edges of whole columns, beginning at ``state``; return their number."""
    dst = edges[t].dst
    count, num_seeds = nodes[dst].count, nodes[dst].num_seeds
    node, copy, colptr = u64(nodes[dst].node, count), u32(nodes[dst].copy, num_seeds), u64(edges[t].colptr, 1 << 62)
    position, dst_node = u64(mode.position, CHUNK), u32(mode.dst_node, CHUNK)
    base = np.uint64(edges[t].colptr)
    column, m = state[1], 0
    while column < count:
        prefetch(base + _EIGHT * node[min(column + AHEAD, count - 1)])
        v = node[column]
        start = colptr[v]
        d = int(np.int64(colptr[v + _ONE] - start))
        n = min(d, limit)
        if m + n > CHUNK:
            break
        if d > limit:
            node_key = fold(key, v)
            if column < num_seeds and copy[column] > 0:
                node_key = fold(node_key, np.uint64(copy[column]))
            choose(mode, node_key, start, d, n, position[m : m + n])
        else:
            for j in range(n):
                position[m + j] = start + np.uint64(j)
        for j in range(n):
            dst_node[m + j] = column
        m += n
        column += 1
    state[1] = column
    return m


@helper
def _keep_by_table(edges: Edges, nodes: Nodes, found: Found, mode: Mode, t: int, m: int, n: int) -> int:
    """Keep the edges whose source has a slot in the table of all nodes."""
    src = edges[t].src
    position, dst_node, neighbor = u64(mode.position, m), u32(mode.dst_node, m), u64(mode.neighbor, m + AHEAD)
    row, col, at = i64(found[t].out_row, n + m), i64(found[t].out_col, n + m), i64(found[t].out_id, n + m)
    table, base, stamp = i32(nodes[src].slots, 1 << 62), np.uint64(nodes[src].slots), nodes[src].stamp
    for x in range(m):
        prefetch(base + _FOUR * neighbor[x + AHEAD])
        value = np.int64(table[neighbor[x]]) - stamp
        row[n], col[n], at[n] = value, dst_node[x], position[x]
        n += value >= 0
    return n


@helper
def make_filter(nodes: Nodes, t: int) -> U64s:
    """Return eight bits per node of the batch: those at the hash of a node's tree and id are set. Empty without trees.

    Most sources outside of the batch have no bit. The bits fit in the cache, the hash table does not.
    """
    if nodes[t].mask < 0:
        return np.zeros(0, np.uint64)
    count, size = nodes[t].count, 64
    while 8 * size < count:
        size *= 2
    bits, last = np.zeros(size, np.uint64), np.uint64(64 * size - 1)
    node, tree = u64(nodes[t].node, count), u64(nodes[t].tree, count)
    for i in range(count):
        at = hash_of(tree[i], node[i]) >> _FILTER & last
        bits[at >> _SIX] |= _ONE << (at & _WORD)
    return bits


@helper
def _drop_unknown(edges: Edges, nodes: Nodes, mode: Mode, t: int, m: int, bits: U64s) -> int:
    """Drop collected edges whose source has no bit; returns how many are left, in their order."""
    position, dst_node, neighbor = u64(mode.position, m), u32(mode.dst_node, m), u64(mode.neighbor, m)
    tree_of_dst, last = u64(nodes[edges[t].dst].tree, 1 << 62), np.uint64(64 * bits.size - 1)
    kept = 0
    for x in range(m):
        at = hash_of(tree_of_dst[dst_node[x]], neighbor[x]) >> _FILTER & last
        position[kept], dst_node[kept], neighbor[kept] = position[x], dst_node[x], neighbor[x]
        kept += np.int64(bits[at >> _SIX] >> (at & _WORD) & _ONE)
    return kept


@helper
def _keep_by_hash(edges: Edges, nodes: Nodes, found: Found, mode: Mode, t: int, m: int, n: int) -> int:
    """Keep the edges whose source is in the hash table: source and destination belong to one tree."""
    src = edges[t].src
    position, dst_node, neighbor = u64(mode.position, m), u32(mode.dst_node, m), u64(mode.neighbor, m)
    row, col, at = i64(found[t].out_row, n + m), i64(found[t].out_col, n + m), i64(found[t].out_id, n + m)
    node, tree = u64(nodes[src].node, 1 << 62), u64(nodes[src].tree, 1 << 62)
    slots, mask, stamp = u64(nodes[src].slots, 1 << 62), np.uint64(nodes[src].mask), np.uint64(nodes[src].stamp)
    tree_of_dst = u64(nodes[edges[t].dst].tree, 1 << 62)
    for x in range(m):
        u, r = neighbor[x], tree_of_dst[dst_node[x]]
        slot, known = find(slots, mask, stamp, hash_of(r, u), r, u, node, tree)
        if known:
            row[n], col[n], at[n] = (slots[slot] & _LOW) - stamp, dst_node[x], position[x]
            n += 1
    return n


@helper
def keep_known(edges: Edges, nodes: Nodes, found: Found, mode: Mode, t: int, m: int, n: int, bits: U64s) -> int:
    """Append the collected edges, of ``m``, whose source is in the batch to ``n`` edges; return their new number.

    ``bits``: :func:`make_filter` of the source type.
    """
    if m > 0:
        fetch_neighbors(edges, mode, t, m)
    neighbor = u64(mode.neighbor, m + AHEAD)
    for x in range(AHEAD):  # for the prefetches
        neighbor[m + x] = 0
    if nodes[edges[t].src].mask < 0:
        end = _keep_by_table(edges, nodes, found, mode, t, m, n)
    else:
        m = _drop_unknown(edges, nodes, mode, t, m, bits)
        end = _keep_by_hash(edges, nodes, found, mode, t, m, n)
    perm32, perm64, edge_id = u32(edges[t].perm, 1 << 62), i64(edges[t].perm, 1 << 62), i64(found[t].out_id, end)
    if edges[t].perm != 0:
        for x in range(n, end):
            edge_id[x] = perm64[edge_id[x]] if edges[t].perm_wide > 0 else np.int64(perm32[edge_id[x]])
    return end


@helper
def _drop(found: Found, t: int, first: int, n: int) -> int:
    """Drop excluded edges from those at ``[first, n)``; returns how many there are then."""
    row, col, edge_id = i64(found[t].out_row, n), i64(found[t].out_col, n), i64(found[t].out_id, n)
    slots = i64(found[t].excluded, found[t].excluded_mask + 1)
    kept = first
    for x in range(first, n):
        row[kept], col[kept], edge_id[kept] = row[x], col[x], edge_id[x]
        kept += 0 if is_excluded(slots, edge_id[x]) else 1
    return kept


@kernel(int64(edges_type, nodes_type, found_type, mode_type, int64, int64, uint64[::1], int64[::1], int64))
def induce_edges(
    edges: Edges, nodes: Nodes, found: Found, modes: Modes, t: int, limit: int, request_key: U64s, state: Ints,
    capacity: int,
) -> int:  # fmt: skip
    """Find the edges of type ``t`` among the nodes of the batch: destinations by local id, columns in stored order.

    Args:
        limit: cut longer columns to a choice of this many entries, up to ``CHUNK``; -1: not.
        request_key: names the batch; read with a limit.
        state: ``(edges so far, column, offset in it)``, where the search begins, and afterwards where it stopped.
        capacity: number of edges that fit in memory.

    Returns:
        1 when finished, 0 when more memory is needed.
    """
    mode = modes[0]
    if edges[t].num_edges == 0:
        return 1
    key = fold(batch_key(_EDGES, request_key), np.uint64(t))
    hash_trees(nodes, edges[t].src)
    bits = make_filter(nodes, edges[t].src)
    while state[1] < nodes[edges[t].dst].count:
        if state[0] + CHUNK > capacity:
            return 0
        n = state[0]
        if limit < 0:
            m = _collect(edges, nodes, mode, t, state)
        else:
            m = _collect_chosen(edges, nodes, mode, t, limit, key, state)
        state[0] = keep_known(edges, nodes, found, mode, t, m, n, bits)
        if found[t].num_excluded > 0:
            state[0] = _drop(found, t, n, state[0])
    return 1
