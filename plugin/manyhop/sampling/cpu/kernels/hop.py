"""One hop, compiled: for each edge type and chunk of the frontier, picks, neighbours, local ids, each in a pass.

Passes are faster than one loop over everything. Within a pass, many independent memory accesses are under way at once,
helped by prefetches. The results of a pass remain in the L1 cache for the next one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling.cpu.kernels import edges_type, found_type, mode_type, nodes_type
from manyhop.sampling.cpu.kernels.picks import build_sets, drop_picked, pick_block, pick_one_by_one, pick_range
from manyhop.sampling.cpu.kernels.random import fold
from manyhop.sampling.cpu.kernels.range import measure, restrict, take_positive
from manyhop.sampling.cpu.kernels.relabel import begin_pass, begin_runs, plant, rehash, relabel, relabel_by_tree
from manyhop.sampling.cpu.kernels.weighted import pick_weighted
from manyhop.sampling.cpu.tables import (
    BAD_SEEDS,
    BLOCK,
    CHUNK,
    DONE,
    NEEDS_FRONTIER,
    NEEDS_OUTPUT,
    NEEDS_PICKS,
    NEEDS_ROOM,
    PAST,
    VECTOR_FANOUT,
    Edges,
    Found,
    Ints,
    Mode,
    Modes,
    Nodes,
)
from manyhop.sampling.random import Use
from manyhop.system.numba_kernels import (
    AHEAD,
    fence,
    helper,
    i64,
    int64,
    kernel,
    prefetch,
    put,
    u32,
    u64,
    uint64,
    void,
    without,
)
from manyhop.system.paging import prefetch_numbers

_NEIGHBOR = int(Use.NEIGHBOR)
_FOUR, _EIGHT = np.uint64(4), np.uint64(8)


@helper
def _edge_type(edges: Edges, nodes: Nodes, found: Found, mode: Mode, k: int, key: np.uint64, t: int) -> None:
    src, dst, done = edges[t].src, edges[t].dst, 0
    begin_pass(nodes, src)
    frontier = nodes[dst].end - nodes[dst].begin
    take = u32(found[t].take, frontier)
    c = np.int64(0)  # not a literal: numba would compile twice
    while c < frontier:
        # A chunk has up to BLOCK nodes and CHUNK edges, and at least one node.
        w, n = 0, 0
        while c + w < frontier and w < BLOCK and (w == 0 or n + np.int64(take[c + w]) <= CHUNK):
            n += np.int64(take[c + w])
            w += 1
        c += w
        if n > 0:
            if mode.picked_ahead > 0:
                _take_picked(edges, nodes, found, mode, t, c - w, w, done)
            else:
                _pick(edges, nodes, found, mode, k, key, t, c - w, w)
            if mode.picked_ahead == 0 and found[t].num_excluded > 0:
                n = drop_picked(edges, found, mode, t, n)
        if n > 0:
            fetch_neighbors(edges, mode, t, n)
            _write_ids(edges, mode, t, i64(found[t].out_id + 8 * done, n))
            _write_col(mode, i64(found[t].out_col + 8 * done, n))
            relabel(nodes, src, dst, mode, found[t].most, n, i64(found[t].out_row + 8 * done, n))
        done += n
    found[t].total = done


@helper
def _pick(edges: Edges, nodes: Nodes, found: Found, mode: Mode, k: int, key: np.uint64, t: int, c: int, w: int) -> None:
    """Pick stored positions for frontier nodes ``[c, c + w)``, with the local ids of these nodes."""
    dst = edges[t].dst
    first_id = nodes[dst].begin + c
    start, degree = u64(found[t].start + 8 * c, w), u32(found[t].degree + 4 * c, w)
    take, node = u32(found[t].take + 4 * c, w), u64(nodes[dst].node + 8 * first_id, w)
    weighted = mode.weighted > 0 and edges[t].alias != 0
    if not weighted and (k < 0 or mode.temporal == 2):
        pick_range(mode, start, degree, take, first_id)
        return
    keys = u64(mode.key, w)
    if mode.disjoint > 0:
        tree = u64(nodes[dst].tree + 8 * first_id, w)
        for i in range(w):
            keys[i] = fold(fold(key, tree[i]), node[i])
    else:
        key = fold(key, np.uint64(0))
        for i in range(w):
            keys[i] = fold(key, node[i])
        if nodes[dst].any_copy > 0 and first_id < nodes[dst].num_seeds:
            copy = u32(nodes[dst].copy, nodes[dst].num_seeds)
            for i in range(min(w, nodes[dst].num_seeds - first_id)):
                if copy[first_id + i] > 0:
                    keys[i] = fold(keys[i], np.uint64(copy[first_id + i]))
    replace = mode.replace > 0
    if weighted:
        pick_weighted(edges, t, mode, node, start, degree, take, k, replace, first_id)
    elif k <= VECTOR_FANOUT:
        pick_block(mode, start, degree, take, k, replace, first_id)
    else:
        pick_one_by_one(mode, start, degree, take, k, replace, first_id)


@helper
def _take_picked(edges: Edges, nodes: Nodes, found: Found, mode: Mode, t: int, c: int, w: int, done: int) -> None:
    """Copy stored positions and local ids that another kernel has picked."""
    first_id = nodes[edges[t].dst].begin + c
    take, picked = u32(found[t].take + 4 * c, w), u64(found[t].picked + 8 * (found[t].num_done + done), 1 << 62)
    position, dst_node = u64(mode.position, 1 << 62), u32(mode.dst_node, 1 << 62)
    m = 0
    for i in range(w):
        for _ in range(take[i]):
            position[m], dst_node[m] = picked[m], first_id + i
            m += 1


@helper
def fetch_neighbors(edges: Edges, mode: Mode, t: int, n: int) -> None:
    """Read the neighbours at the ``n > 0`` picked positions of a chunk."""
    position, neighbor = u64(mode.position, n + AHEAD), u64(mode.neighbor, n)
    for x in range(AHEAD):  # for the prefetches
        position[n + x] = position[n - 1]
    row = np.uint64(edges[t].row)
    if edges[t].pages > 0:
        prefetch_numbers(row, 8 if edges[t].row_wide > 0 else 4, position[:n])
    if edges[t].row_wide > 0:
        row64 = u64(edges[t].row, 1 << 62)
        for x in range(n):
            prefetch(row + _EIGHT * position[x + AHEAD])
            neighbor[x] = row64[position[x]]
    else:
        row32 = u32(edges[t].row, 1 << 62)
        for x in range(n):
            prefetch(row + _FOUR * position[x + AHEAD])
            neighbor[x] = row32[position[x]]


@helper
def _write_ids(edges: Edges, mode: Mode, t: int, out: Ints) -> None:
    """Write the user's ids of the edges of a chunk."""
    position, perm, past = u64(mode.position, out.size + AHEAD), np.uint64(edges[t].perm), mode.past > 0
    if edges[t].perm == 0:
        for x in range(out.size):
            put(out, x, position[x], past)
    elif edges[t].perm_wide > 0:
        perm64 = u64(edges[t].perm, 1 << 62)
        for x in range(out.size):
            prefetch(perm + _EIGHT * position[x + AHEAD])
            put(out, x, perm64[position[x]], past)
    else:
        perm32 = u32(edges[t].perm, 1 << 62)
        for x in range(out.size):
            prefetch(perm + _FOUR * position[x + AHEAD])
            put(out, x, perm32[position[x]], past)


@helper
def _write_col(mode: Mode, out: Ints) -> None:
    dst_node, past = u32(mode.dst_node, out.size), mode.past > 0
    for x in range(out.size):
        put(out, x, dst_node[x], past)


@helper
def begin(nodes: Nodes, mode: Mode, seeds: Ints) -> None:
    """Enter the seeds: ``seeds[i] = (node type, address, number)``."""
    for t in range(len(nodes)):
        nodes[t].count = 0
        nodes[t].num_seeds = 0
        nodes[t].any_copy = 0
        nodes[t].end = 0
        nodes[t].num_runs = 0
        if mode.disjoint > 0:
            begin_runs(nodes, t)
    first_tree = np.int64(0)
    for i in range(seeds.shape[0]):
        plant(nodes, seeds[i, 0], u64(seeds[i, 1], seeds[i, 2]), mode.disjoint > 0, first_tree)
        first_tree += seeds[i, 2]


@helper
def _set_frontier(nodes: Nodes, mode: Mode) -> None:
    """Take a snapshot of the nodes that ask."""
    for t in range(len(nodes)):
        nodes[t].begin = 0 if mode.expand_all > 0 else nodes[t].end
        nodes[t].end = nodes[t].count


@helper
def measure_hop(edges: Edges, nodes: Nodes, found: Found, mode: Mode, fanout: Ints) -> None:
    """Take a snapshot of the frontier, and find out how many edges the hop will have."""
    _set_frontier(nodes, mode)
    measure(edges, nodes, found, mode, fanout)


@helper
def _are_nodes(nodes: Nodes, seeds: Ints) -> bool:
    for i in range(seeds.shape[0]):
        largest = np.uint64(0)
        for u in u64(seeds[i, 1], seeds[i, 2]):
            largest = max(largest, u)  # negative ids are large ones
        if seeds[i, 2] > 0 and largest >= np.uint64(nodes[seeds[i, 0]].num_nodes):
            return False
    return True


@helper
def _fits(edges: Edges, nodes: Nodes, found: Found, mode: Mode, keep: bool) -> bool:
    """Return whether memory suffices for all nodes and edges that the measured hop can add."""
    for u in range(len(nodes)):
        bound = nodes[u].count
        for t in range(len(edges)):
            bound += found[t].total if edges[t].src == u else 0
        if mode.disjoint == 0:
            bound = min(bound, nodes[u].num_nodes + nodes[u].num_seeds)
        if bound > nodes[u].capacity or bound + nodes[u].stamp > mode.limit:
            return False
    for t in range(len(edges)):
        kept = found[t].num_done + found[t].total
        if found[t].most > mode.chunk_capacity or (keep and kept > found[t].kept_capacity):
            return False
    return True


@helper
def _copy(source: int, to: int, n: int, past: bool) -> None:
    """Copy an array of ``n`` entries of 8 bytes from one address to another."""
    old, new = i64(source, n), i64(to, n)
    for x in range(n):
        put(new, x, old[x], past)


@helper
def _copy_kept(found: Found, past: bool) -> None:
    """Move the edges of the hops before to where ``out_*`` begin, which advance past them."""
    for t in range(len(found)):
        n = found[t].num_done
        _copy(found[t].kept_row, found[t].out_row, n, past)
        _copy(found[t].kept_col, found[t].out_col, n, past)
        _copy(found[t].kept_id, found[t].out_id, n, past)
        found[t].out_row += 8 * n
        found[t].out_col += 8 * n
        found[t].out_id += 8 * n


@helper
def _sample(
    edges: Edges, nodes: Nodes, found: Found, mode: Mode, fanout: Ints, request_key: npt.NDArray[np.uint64]
) -> None:
    """Sample the hop that was measured."""
    key = fold(np.uint64(0), np.uint64(_NEIGHBOR))
    for part in request_key:
        key = fold(key, part)
    key = fold(key, np.uint64(mode.hop))
    for t in range(len(edges)):
        if found[t].total > 0:
            _edge_type(edges, nodes, found, mode, fanout[t], fold(key, np.uint64(t)), t)


@kernel(int64(edges_type, nodes_type, found_type, mode_type, int64[:, ::1], int64[:, ::1], uint64[::1], int64[:, ::1]))
def sample_batch(
    edges: Edges,
    nodes: Nodes,
    found: Found,
    modes: Modes,
    fanouts: Ints,
    seeds: Ints,
    request_key: npt.NDArray[np.uint64],
    counts: Ints,
) -> int:
    """Sample a batch, from the state in ``hop`` and ``step`` of ``modes`` until it is done or memory is needed.

    Args:
        seeds: ``seeds[i] = (node type, address, number)``.
        counts: row h, nodes of each type after h hops, then edges of each type of the hop before.

    Returns:
        ``DONE``; otherwise call again, with more memory: ``NEEDS_FRONTIER`` for the frontier of the hop,
        ``NEEDS_ROOM`` for new nodes and edges, ``NEEDS_OUTPUT``: ``out_*`` for all edges. ``NEEDS_PICKS``: the picks
        of the hop, in ``take``, ``total``, ``most`` and ``picked``. ``BAD_SEEDS``: ids out of range.
    """
    mode = modes[0]
    num_hops, num_types = fanouts.shape[0], len(nodes)
    if mode.hop < 0:
        if not _are_nodes(nodes, seeds):
            return BAD_SEEDS
        begin(nodes, mode, seeds)
        build_sets(found)
        for t in range(len(edges)):
            found[t].num_done = 0
        for u in range(num_types):
            counts[0, u] = nodes[u].count
        mode.hop, mode.step = 0, 0
    while mode.hop < num_hops:
        hop = mode.hop
        keep = hop < num_hops - 1 or mode.keep_all > 0
        if mode.step == 0:
            for t in range(len(edges)):
                if nodes[edges[t].dst].count > found[t].frontier_capacity:
                    return NEEDS_FRONTIER
            mode.step = 1
            if mode.picked_ahead > 0:
                _set_frontier(nodes, mode)
                return NEEDS_PICKS
            measure_hop(edges, nodes, found, mode, fanouts[hop])
        if mode.step == 1:
            if not _fits(edges, nodes, found, mode, keep):
                return NEEDS_ROOM
            mode.step = 2
            if not keep:
                return NEEDS_OUTPUT
        if keep:
            for t in range(len(edges)):
                found[t].out_row = found[t].kept_row + 8 * found[t].num_done
                found[t].out_col = found[t].kept_col + 8 * found[t].num_done
                found[t].out_id = found[t].kept_id + 8 * found[t].num_done
        else:
            num_edges = 0
            for t in range(len(edges)):
                num_edges += found[t].num_done + found[t].total
            mode.past = num_edges >= PAST
            _copy_kept(found, mode.past > 0)
        _sample(edges, nodes, found, mode, fanouts[hop], request_key)
        for t in range(len(edges)):
            found[t].num_done += found[t].total
            counts[hop + 1, num_types + t] = found[t].total
        for u in range(num_types):
            counts[hop + 1, u] = nodes[u].count
        mode.hop, mode.step = hop + 1, 0
    if mode.past > 0:
        mode.past = 0
        fence()
    return DONE


# Uniform sampling without times, trees, excluded edges and picks of other kernels suffices for most loaders.
sample_plain_batch = without(
    sample_batch,
    *(pick_weighted, take_positive, restrict, begin_runs, begin_pass, relabel_by_tree),
    *(build_sets, drop_picked, _take_picked),
)

# Another kernel picks the edges, without trees.
sample_picked_batch = without(sample_batch, measure_hop, _pick, drop_picked, begin_runs, begin_pass, relabel_by_tree)


@kernel("void(int64[:,::1])")
def copy_arrays(moves: Ints) -> None:
    """Copy arrays of 8 bytes per entry: ``moves[i] = (from address, to address, number of entries)``."""
    for i in range(moves.shape[0]):
        _copy(moves[i, 0], moves[i, 1], moves[i, 2], False)


@kernel("void(int64[:,::1])")
def fill_indptr(columns: Ints) -> None:
    """Point to the edges of each destination of a hop, for blocks of DGL and GraphBolt.

    Every edge writes where its node ends, the last one wins: without a branch per node this is several times as fast as
    looking for the ends.

    Args:
        columns: ``[n, 4]``: address of int64 ``col``, ascending; its length; a number of nodes; address of the int64
            result, one entry longer: the first edge whose ``col`` is at least 0, 1, 2, ...
    """
    for i in range(columns.shape[0]):
        num_edges, num_dst = columns[i, 1], columns[i, 2]
        col, indptr = i64(columns[i, 0], num_edges), i64(columns[i, 3], num_dst + 1)
        indptr[:] = 0
        for e in range(num_edges):
            indptr[np.uint64(col[e] + 1)] = e + 1
        end = 0
        for v in range(num_dst + 1):
            end = max(end, indptr[v])
            indptr[v] = end


@kernel(void(nodes_type, int64))
def rehash_type(nodes: Nodes, t: int) -> None:
    """Move the nodes of the batch into a new hash table."""
    if nodes[t].num_runs == 0:
        rehash(nodes, t)
