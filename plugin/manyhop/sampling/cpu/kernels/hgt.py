"""Sampling of the Heterogeneous Graph Transformer, compiled: budgets, and the draw of nodes in proportion to them.

A second table of nodes numbers the candidates, which are the nodes with a budget, in the order of addition. A drawn
candidate retains its number, with a budget of zero: entries of weight zero change nothing in a weighted draw.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling.cpu.kernels import edges_type, found_type, mode_type, nodes_type
from manyhop.sampling.cpu.kernels.hop import begin, fetch_neighbors, measure_hop
from manyhop.sampling.cpu.kernels.induced import batch_key
from manyhop.sampling.cpu.kernels.picks import all_positive, pick_one_by_one, without_replacement
from manyhop.sampling.cpu.kernels.random import fold, unit
from manyhop.sampling.cpu.kernels.relabel import find, hash_of, relabel
from manyhop.sampling.cpu.tables import BLOCK, CHUNK, Edges, Found, Ints, Mode, Modes, Nodes
from manyhop.sampling.random import Use
from manyhop.system.numba_kernels import f64, helper, i32, i64, int64, kernel, u32, u64, uint64, void

U64s = npt.NDArray[np.uint64]
F64s = npt.NDArray[np.float64]

_BUDGET, _CHOICE = int(Use.HGT_BUDGET), int(Use.HGT_PICK)
_ONE, _HALF, _LOW = np.uint64(1), np.uint64(32), np.uint64(0xFFFFFFFF)


@helper
def _keep_new(nodes: Nodes, src: int, mode: Mode, n: int) -> int:
    """Drop a chunk's neighbours that are in the batch; return the number of the others."""
    neighbor, dst_node = u64(mode.neighbor, n), u32(mode.dst_node, n)
    kept = 0
    if nodes[src].mask < 0:
        table = i32(nodes[src].slots, 1 << 62)
        for x in range(n):
            u = neighbor[x]
            neighbor[kept], dst_node[kept] = u, dst_node[x]
            kept += int(np.int64(table[u]) < nodes[src].stamp)
    else:
        node, tree, zero = u64(nodes[src].node, 1 << 62), u64(nodes[src].tree, 1 << 62), np.uint64(0)
        slots, mask, stamp = u64(nodes[src].slots, 1 << 62), np.uint64(nodes[src].mask), np.uint64(nodes[src].stamp)
        for x in range(n):
            u = neighbor[x]
            neighbor[kept], dst_node[kept] = u, dst_node[x]
            _, known = find(slots, mask, stamp, hash_of(zero, u), zero, u, node, tree)
            kept += not known
    return kept


@helper
def _append(nodes: Nodes, t: int, u: np.uint64) -> None:
    """Add a new node to the batch."""
    end = nodes[t].count
    node, tree = u64(nodes[t].node, end + 1), u64(nodes[t].tree, end + 1)
    node[end], tree[end] = u, np.uint64(0)
    if nodes[t].mask < 0:
        i32(nodes[t].slots, 1 << 62)[u] = nodes[t].stamp + end
    else:
        slots, mask, stamp = u64(nodes[t].slots, 1 << 62), np.uint64(nodes[t].mask), np.uint64(nodes[t].stamp)
        h = hash_of(np.uint64(0), u)
        at, _ = find(slots, mask, stamp, h, np.uint64(0), u, node, tree)
        slots[at] = (h >> _HALF) << _HALF | (stamp + np.uint64(end))
    nodes[t].count = end + 1


@kernel(void(nodes_type, mode_type, int64[:, ::1]))
def begin_batch(nodes: Nodes, modes: Modes, seeds: Ints) -> None:
    """Enter the seeds: ``seeds[i] = (node type, address, number)``."""
    mode = modes[0]
    begin(nodes, mode, seeds)


@kernel(void(edges_type, nodes_type, found_type, mode_type, int64[::1]))
def measure_columns(edges: Edges, nodes: Nodes, found: Found, modes: Modes, fanout: Ints) -> None:
    """Find the columns of the nodes that were added last, and how many entries of each count."""
    mode = modes[0]
    measure_hop(edges, nodes, found, mode, fanout)


@kernel(void(edges_type, nodes_type, found_type, mode_type, nodes_type, int64[::1], int64, uint64[::1], int64))
def add_budgets(
    edges: Edges, nodes: Nodes, found: Found, modes: Modes, candidates: Nodes, budgets: Ints,
    max_neighbors: int, request_key: U64s, hop: int,
) -> None:  # fmt: skip
    """Add the neighbours of the measured frontier: each gets one over the number of neighbours of the frontier node.

    Args:
        candidates: table of nodes of the candidates.
        budgets: address per node type: ``float64`` budget of each candidate.
    """
    mode = modes[0]
    for t in range(len(edges)):
        if found[t].total == 0:
            continue
        src, dst = edges[t].src, edges[t].dst
        key = fold(fold(batch_key(_BUDGET, request_key), np.uint64(hop)), np.uint64(t))
        frontier, budget = nodes[dst].end - nodes[dst].begin, f64(budgets[src], 1 << 62)
        take, c = u32(found[t].take, frontier), 0
        while c < frontier:
            w, n = 0, 0
            while c + w < frontier and w < BLOCK and (w == 0 or n + int(take[c + w]) <= CHUNK):
                n += int(take[c + w])
                w += 1
            if n > 0:
                first_id = nodes[dst].begin + c
                node, keys = u64(nodes[dst].node + 8 * first_id, w), u64(mode.key, w)
                copy = u32(nodes[dst].copy, nodes[dst].num_seeds)
                for i in range(w):
                    keys[i] = fold(key, node[i])
                    if first_id + i < nodes[dst].num_seeds and copy[first_id + i] > 0:
                        keys[i] = fold(keys[i], np.uint64(copy[first_id + i]))
                start, degree = u64(found[t].start + 8 * c, w), u32(found[t].degree + 4 * c, w)
                pick_one_by_one(mode, start, degree, take[c : c + w], max_neighbors, False, first_id)
                fetch_neighbors(edges, mode, t, n)
                n = _keep_new(nodes, src, mode, n)
            if n > 0:
                number, dst_node, before = i64(mode.position, n), u32(mode.dst_node, n), candidates[src].count
                relabel(candidates, src, dst, mode, n, n, number)
                for i in range(before, candidates[src].count):
                    budget[i] = 0.0
                for x in range(n):
                    budget[number[x]] += 1.0 / take[dst_node[x] - nodes[dst].begin]
            c += w


@helper
def _find(cumw: F64s, r: np.uint64) -> np.uint64:
    """Return the first entry whose running sum exceeds a draw, or the last positive one if rounding leaves none."""
    target = unit(r) * cumw[cumw.size - 1]
    q, left = np.uint64(0), cumw.size
    while left > 1:
        half = np.uint64(left >> 1)
        q += half if cumw[q + half - _ONE] <= target else np.uint64(0)
        left -= left >> 1
    if cumw[q] <= target:
        while q > np.uint64(0) and cumw[q] == cumw[q - _ONE]:
            q -= _ONE
    return q


_pick = without_replacement(_find)


@kernel(void(nodes_type, mode_type, nodes_type, int64[::1], int64, int64[::1], uint64[::1], int64))
def draw_nodes(
    nodes: Nodes, modes: Modes, candidates: Nodes, budgets: Ints, sums: int, num_samples: Ints,
    request_key: U64s, hop: int,
) -> None:  # fmt: skip
    """Draw candidates of all types, in proportion to the squares of their budgets, and add them to the batch.

    Args:
        sums: address of scratch memory: two float64 for each candidate of the largest type.
    """
    mode = modes[0]
    for t in range(len(nodes)):
        n = candidates[t].count
        budget, cumw, weight = f64(budgets[t], n), f64(sums, n), f64(sums + 8 * n, n)
        total, positive = 0.0, 0
        for i in range(n):
            before = total
            total += budget[i] * budget[i]
            cumw[i], weight[i] = total, total - before
            positive += total > before
        k = int(min(num_samples[t], positive))
        if k == 0:
            continue
        picked = u64(mode.position, k)
        if k == positive:
            all_positive(weight, picked)
        else:
            key = fold(fold(batch_key(_CHOICE, request_key), np.uint64(hop)), np.uint64(t))
            _pick(mode, cumw, np.uint64(0), weight, key, picked, False)
        candidate = u64(candidates[t].node, n)
        for j in range(k):
            _append(nodes, t, candidate[picked[j]])
            budget[picked[j]] = 0.0
