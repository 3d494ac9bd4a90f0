"""The edges among the nodes of a batch of HGT sampling, compiled: long columns are cut to a choice of their entries."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling.cpu.kernels.hgt import batch_key
from manyhop.sampling.cpu.kernels.induced import keep_known, make_filter
from manyhop.sampling.cpu.kernels.picks import choose
from manyhop.sampling.cpu.kernels.random import fold
from manyhop.sampling.cpu.kernels.records import edges_type, found_type, mode_type, nodes_type
from manyhop.sampling.cpu.tables import AHEAD, CHUNK, Edges, Found, Ints, Mode, Modes, Nodes
from manyhop.sampling.random import Use
from manyhop.system.numba_kernels import helper, int64, kernel, prefetch, u32, u64, uint64

U64s = npt.NDArray[np.uint64]

_EDGES = int(Use.HGT_EDGES)
_ONE, _EIGHT = np.uint64(1), np.uint64(8)


@helper
def _collect(edges: Edges, nodes: Nodes, mode: Mode, t: int, limit: int, key: np.uint64, state: Ints) -> int:
    """Up to CHUNK chosen edges of whole columns from ``state`` on: their positions and frontier nodes; their number."""
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


@kernel(int64(edges_type, nodes_type, found_type, mode_type, int64, int64, uint64[::1], int64[::1], int64))
def choose_edges(
    edges: Edges,
    nodes: Nodes,
    found: Found,
    modes: Modes,
    t: int,
    limit: int,
    request_key: U64s,
    state: Ints,
    capacity: int,
) -> int:
    """Find edges of type ``t`` among the nodes of the batch, of at most ``limit <= CHUNK`` entries of each column.

    Args:
        state: ``(edges so far, column, 0)``; goes on from there and is left where it stopped.
        capacity: number of edges for which there is memory.

    Returns:
        1 when finished, 0 when more memory is needed.
    """
    mode = modes[0]
    if edges[t].num_edges == 0:
        return 1
    key = fold(batch_key(_EDGES, request_key), np.uint64(t))
    bits = make_filter(nodes, edges[t].src)
    while state[1] < nodes[edges[t].dst].count:
        if state[0] + CHUNK > capacity:
            return 0
        m = _collect(edges, nodes, mode, t, limit, key, state)
        state[0] = keep_known(edges, nodes, found, mode, t, m, state[0], bits)
    return 1
