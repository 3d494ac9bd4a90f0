"""One hop, compiled: for each edge type and chunk of the frontier, picks, neighbours, local ids, each in a pass.

Passes beat one loop over everything: in each, many memory accesses that do not depend on each other are under way at
once, helped by prefetches, and what one pass hands to the next stays in the L1 cache.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling.cpu.kernels.exclude import build_sets, drop_picked
from manyhop.sampling.cpu.kernels.picks import pick_block, pick_one_by_one, pick_range
from manyhop.sampling.cpu.kernels.random import fold
from manyhop.sampling.cpu.kernels.range import measure, restrict, take_positive
from manyhop.sampling.cpu.kernels.relabel import plant, rehash, relabel
from manyhop.sampling.cpu.kernels.relabel_tree import begin_pass, begin_runs, relabel_by_tree
from manyhop.sampling.cpu.kernels.weighted import pick_weighted
from manyhop.sampling.cpu.tables import (
    AHEAD,
    ALIAS,
    ANY_COPY,
    ASKER,
    BAD_SEEDS,
    BEGIN,
    BLOCK,
    CHUNK,
    CHUNK_ROOM,
    COPY,
    COUNT,
    DEGREE,
    DISJOINT,
    DONE,
    DST,
    END,
    EXPAND_ALL,
    FRONTIER_ROOM,
    HOP,
    KEEP_ALL,
    KEPT_ROOM,
    KEPT_ROW,
    KEY,
    LIMIT,
    MOST,
    NEEDS_FRONTIER,
    NEEDS_OUTPUT,
    NEEDS_PICKS,
    NEEDS_ROOM,
    NEIGHBOR,
    NODE,
    NUM_DONE,
    NUM_EXCLUDED,
    NUM_NODES,
    NUM_RUNS,
    NUM_SEEDS,
    OUT_COL,
    OUT_ID,
    OUT_ROW,
    PERM,
    PERM_WIDE,
    PICKED,
    PICKED_AHEAD,
    POSITION,
    REPLACE,
    ROOM,
    ROW,
    ROW_WIDE,
    SRC,
    STAMP,
    START,
    STEP,
    TAKE,
    TEMPORAL,
    TOTAL,
    TREE,
    VECTOR_FANOUT,
    WEIGHTED,
)
from manyhop.sampling.random import Use
from manyhop.system.numba_kernels import helper, i64, kernel, prefetch, u32, u64, without

Table = npt.NDArray[np.int64]

_NEIGHBOR = int(Use.NEIGHBOR)
_FOUR, _EIGHT = np.uint64(4), np.uint64(8)


@helper
def _edge_type(edges: Table, nodes: Table, found: Table, mode: Table, k: int, key: np.uint64, t: int) -> None:
    src, dst, done = edges[t, SRC], edges[t, DST], 0
    begin_pass(nodes, src)
    frontier = nodes[dst, END] - nodes[dst, BEGIN]
    take = u32(found[t, TAKE], frontier)
    c = np.int64(0)  # not a literal, for which numba would compile twice
    while c < frontier:
        # A chunk: at most BLOCK nodes and CHUNK edges, but at least one node.
        w, n = 0, 0
        while c + w < frontier and w < BLOCK and (w == 0 or n + np.int64(take[c + w]) <= CHUNK):
            n += np.int64(take[c + w])
            w += 1
        c += w
        if n > 0:
            if mode[PICKED_AHEAD] > 0:
                _take_picked(edges, nodes, found, mode, t, c - w, w, done)
            else:
                _pick(edges, nodes, found, mode, k, key, t, c - w, w)
            if mode[PICKED_AHEAD] == 0 and found[t, NUM_EXCLUDED] > 0:
                n = drop_picked(edges, found, mode, t, n)
        if n > 0:
            fetch_neighbors(edges, mode, t, n)
            _write_ids(edges, mode, t, i64(found[t, OUT_ID] + 8 * done, n))
            _write_col(mode, i64(found[t, OUT_COL] + 8 * done, n))
            relabel(nodes, src, dst, mode, n, i64(found[t, OUT_ROW] + 8 * done, n))
        done += n
    found[t, TOTAL] = done


@helper
def _pick(
    edges: Table, nodes: Table, found: Table, mode: Table, k: int, key: np.uint64, t: int, c: int, w: int
) -> None:
    """Stored positions and local ids of the askers of one chunk: frontier nodes ``[c, c + w)``."""
    dst = edges[t, DST]
    first_id = nodes[dst, BEGIN] + c
    start, degree = u64(found[t, START] + 8 * c, w), u32(found[t, DEGREE] + 4 * c, w)
    take, node = u32(found[t, TAKE] + 4 * c, w), u64(nodes[dst, NODE] + 8 * first_id, w)
    weighted = mode[WEIGHTED] > 0 and edges[t, ALIAS] != 0
    if not weighted and (k < 0 or mode[TEMPORAL] == 2):
        pick_range(mode, start, degree, take, first_id)
        return
    keys = u64(mode[KEY], w)
    if mode[DISJOINT] > 0:
        tree = u64(nodes[dst, TREE] + 8 * first_id, w)
        for i in range(w):
            keys[i] = fold(fold(key, tree[i]), node[i])
    else:
        key = fold(key, np.uint64(0))
        for i in range(w):
            keys[i] = fold(key, node[i])
        if nodes[dst, ANY_COPY] > 0 and first_id < nodes[dst, NUM_SEEDS]:
            copy = u32(nodes[dst, COPY], nodes[dst, NUM_SEEDS])
            for i in range(min(w, nodes[dst, NUM_SEEDS] - first_id)):
                if copy[first_id + i] > 0:
                    keys[i] = fold(keys[i], np.uint64(copy[first_id + i]))
    replace = mode[REPLACE] > 0
    if weighted:
        pick_weighted(edges, t, mode, node, start, degree, take, k, replace, first_id)
    elif k <= VECTOR_FANOUT:
        pick_block(mode, start, degree, take, k, replace, first_id)
    else:
        pick_one_by_one(mode, start, degree, take, k, replace, first_id)


@helper
def _take_picked(edges: Table, nodes: Table, found: Table, mode: Table, t: int, c: int, w: int, done: int) -> None:
    """The same where all is picked already."""
    first_id = nodes[edges[t, DST], BEGIN] + c
    take, picked = u32(found[t, TAKE] + 4 * c, w), u64(found[t, PICKED] + 8 * (found[t, NUM_DONE] + done), 1 << 62)
    position, asker = u64(mode[POSITION], 1 << 62), u32(mode[ASKER], 1 << 62)
    m = 0
    for i in range(w):
        for _ in range(take[i]):
            position[m], asker[m] = picked[m], first_id + i
            m += 1


@helper
def fetch_neighbors(edges: Table, mode: Table, t: int, n: int) -> None:
    """Third pass: the neighbours at the ``n > 0`` picked positions of a chunk."""
    position, neighbor = u64(mode[POSITION], n + AHEAD), u64(mode[NEIGHBOR], n)
    for x in range(AHEAD):  # for the prefetches
        position[n + x] = position[n - 1]
    row = np.uint64(edges[t, ROW])
    if edges[t, ROW_WIDE] > 0:
        row64 = u64(edges[t, ROW], 1 << 62)
        for x in range(n):
            prefetch(row + _EIGHT * position[x + AHEAD])
            neighbor[x] = row64[position[x]]
    else:
        row32 = u32(edges[t, ROW], 1 << 62)
        for x in range(n):
            prefetch(row + _FOUR * position[x + AHEAD])
            neighbor[x] = row32[position[x]]


@helper
def _write_ids(edges: Table, mode: Table, t: int, out: Table) -> None:
    """The user's ids of the edges of a chunk."""
    position, perm = u64(mode[POSITION], out.size + AHEAD), np.uint64(edges[t, PERM])
    if edges[t, PERM] == 0:
        for x in range(out.size):
            out[x] = position[x]
    elif edges[t, PERM_WIDE] > 0:
        perm64 = u64(edges[t, PERM], 1 << 62)
        for x in range(out.size):
            prefetch(perm + _EIGHT * position[x + AHEAD])
            out[x] = perm64[position[x]]
    else:
        perm32 = u32(edges[t, PERM], 1 << 62)
        for x in range(out.size):
            prefetch(perm + _FOUR * position[x + AHEAD])
            out[x] = perm32[position[x]]


@helper
def _write_col(mode: Table, out: Table) -> None:
    asker = u32(mode[ASKER], out.size)
    for x in range(out.size):
        out[x] = asker[x]


@helper
def begin(nodes: Table, mode: Table, seeds: Table) -> None:
    """Enter the seeds: ``seeds[i] = (node type, address, number)``."""
    for t in range(nodes.shape[0]):
        nodes[t, COUNT] = 0
        nodes[t, NUM_SEEDS] = 0
        nodes[t, ANY_COPY] = 0
        nodes[t, END] = 0
        nodes[t, NUM_RUNS] = 0
        if mode[DISJOINT] > 0:
            begin_runs(nodes, t)
    first_tree = np.int64(0)
    for i in range(seeds.shape[0]):
        plant(nodes, seeds[i, 0], u64(seeds[i, 1], seeds[i, 2]), mode[DISJOINT] > 0, first_tree)
        first_tree += seeds[i, 2]


@helper
def _set_frontier(nodes: Table, mode: Table) -> None:
    """Take a snapshot of the nodes that ask."""
    for t in range(nodes.shape[0]):
        nodes[t, BEGIN] = 0 if mode[EXPAND_ALL] > 0 else nodes[t, END]
        nodes[t, END] = nodes[t, COUNT]


@helper
def measure_hop(edges: Table, nodes: Table, found: Table, mode: Table, fanout: Table) -> None:
    """Take a snapshot of the frontier, and find out how many edges the hop will have."""
    _set_frontier(nodes, mode)
    measure(edges, nodes, found, mode, fanout)


@helper
def _are_nodes(nodes: Table, seeds: Table) -> bool:
    for i in range(seeds.shape[0]):
        largest = np.uint64(0)
        for u in u64(seeds[i, 1], seeds[i, 2]):
            largest = max(largest, u)  # negative ids are large ones
        if seeds[i, 2] > 0 and largest >= np.uint64(nodes[seeds[i, 0], NUM_NODES]):
            return False
    return True


@helper
def _has_room(edges: Table, nodes: Table, found: Table, mode: Table, keep: bool) -> bool:
    """Whether there is memory for all that the measured hop can add."""
    for u in range(nodes.shape[0]):
        bound = nodes[u, COUNT]
        for t in range(edges.shape[0]):
            bound += found[t, TOTAL] if edges[t, SRC] == u else 0
        if mode[DISJOINT] == 0:
            bound = min(bound, nodes[u, NUM_NODES] + nodes[u, NUM_SEEDS])
        if bound > nodes[u, ROOM] or bound + nodes[u, STAMP] > mode[LIMIT]:
            return False
    for t in range(edges.shape[0]):
        if found[t, MOST] > mode[CHUNK_ROOM] or (keep and found[t, NUM_DONE] + found[t, TOTAL] > found[t, KEPT_ROOM]):
            return False
    return True


@helper
def _copy_kept(found: Table) -> None:
    """Move the edges of the hops before to where ``OUT_*`` begin, which advance past them."""
    for t in range(found.shape[0]):
        n = found[t, NUM_DONE]
        for x in range(3):
            kept, out = u64(found[t, KEPT_ROW + x], n), u64(found[t, OUT_ROW + x], n)
            for i in range(n):
                out[i] = kept[i]
            found[t, OUT_ROW + x] += 8 * n


@helper
def _sample(
    edges: Table,
    nodes: Table,
    found: Table,
    mode: Table,
    fanout: Table,
    request_key: npt.NDArray[np.uint64],
) -> None:
    """Sample the hop that was measured."""
    key = fold(np.uint64(0), np.uint64(_NEIGHBOR))
    for part in request_key:
        key = fold(key, part)
    key = fold(key, np.uint64(mode[HOP]))
    for t in range(edges.shape[0]):
        if found[t, TOTAL] > 0:
            _edge_type(edges, nodes, found, mode, fanout[t], fold(key, np.uint64(t)), t)


_TABLE = "int64[:,::1]"


@kernel(f"int64({_TABLE}, {_TABLE}, {_TABLE}, int64[::1], {_TABLE}, {_TABLE}, uint64[::1], {_TABLE})")
def sample_batch(
    edges: Table,
    nodes: Table,
    found: Table,
    mode: Table,
    fanouts: Table,
    seeds: Table,
    request_key: npt.NDArray[np.uint64],
    counts: Table,
) -> int:
    """Sample a batch, from the state in ``mode[HOP]`` and ``mode[STEP]`` until it is done or memory is needed.

    Args:
        seeds: ``seeds[i] = (node type, address, number)``.
        counts: row h, nodes of each type after h hops, then edges of each type of the hop before.

    Returns:
        ``DONE``; otherwise call again, after room was made: ``NEEDS_FRONTIER`` for what the hop starts from,
        ``NEEDS_ROOM`` for what it adds, ``NEEDS_OUTPUT``: ``OUT_*`` for all edges. ``NEEDS_PICKS``: what the hop
        picks, ``TAKE``, ``TOTAL``, ``MOST`` and ``PICKED``. ``BAD_SEEDS``: ids out of range.
    """
    num_hops, num_types = fanouts.shape[0], nodes.shape[0]
    if mode[HOP] < 0:
        if not _are_nodes(nodes, seeds):
            return BAD_SEEDS
        begin(nodes, mode, seeds)
        build_sets(found)
        for t in range(edges.shape[0]):
            found[t, NUM_DONE] = 0
        for u in range(num_types):
            counts[0, u] = nodes[u, COUNT]
        mode[HOP], mode[STEP] = 0, 0
    while mode[HOP] < num_hops:
        hop = mode[HOP]
        keep = hop < num_hops - 1 or mode[KEEP_ALL] > 0
        if mode[STEP] == 0:
            for t in range(edges.shape[0]):
                if nodes[edges[t, DST], COUNT] > found[t, FRONTIER_ROOM]:
                    return NEEDS_FRONTIER
            mode[STEP] = 1
            if mode[PICKED_AHEAD] > 0:
                _set_frontier(nodes, mode)
                return NEEDS_PICKS
            measure_hop(edges, nodes, found, mode, fanouts[hop])
        if mode[STEP] == 1:
            if not _has_room(edges, nodes, found, mode, keep):
                return NEEDS_ROOM
            mode[STEP] = 2
            if not keep:
                return NEEDS_OUTPUT
        if keep:
            for t in range(edges.shape[0]):
                for x in range(3):
                    found[t, OUT_ROW + x] = found[t, KEPT_ROW + x] + 8 * found[t, NUM_DONE]
        else:
            _copy_kept(found)
        _sample(edges, nodes, found, mode, fanouts[hop], request_key)
        for t in range(edges.shape[0]):
            found[t, NUM_DONE] += found[t, TOTAL]
            counts[hop + 1, num_types + t] = found[t, TOTAL]
        for u in range(num_types):
            counts[hop + 1, u] = nodes[u, COUNT]
        mode[HOP], mode[STEP] = hop + 1, 0
    return DONE


# Uniform, not temporal, not disjoint, nothing excluded, nothing picked ahead: most loaders need no more.
sample_plain_batch = without(
    sample_batch,
    *(pick_weighted, take_positive, restrict, begin_runs, begin_pass, relabel_by_tree),
    *(build_sets, drop_picked, _take_picked),
)

# All is picked ahead, by another kernel; no trees.
sample_picked_batch = without(sample_batch, measure_hop, _pick, drop_picked, begin_runs, begin_pass, relabel_by_tree)


@kernel("void(int64[:,::1])")
def copy_arrays(moves: Table) -> None:
    """Copy arrays of 8 bytes per entry: ``moves[i] = (from address, to address, number of entries)``."""
    for i in range(moves.shape[0]):
        n = moves[i, 2]
        source, to = u64(moves[i, 0], n), u64(moves[i, 1], n)
        for x in range(n):
            to[x] = source[x]


@kernel("void(int64[:,::1], int64)")
def rehash_type(nodes: Table, t: int) -> None:
    """Move the nodes of the batch into a new hash table."""
    if nodes[t, NUM_RUNS] == 0:
        rehash(nodes, t)
