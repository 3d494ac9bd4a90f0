"""From global node ids to local ids: a table of all nodes, or a hash table of the batch's size.

Slots hold ``stamp + local id``; values below the stamp of this batch are empty, so that nothing is cleared between
batches. A table of all nodes (``mask == -1``) has one int32 slot per node. A hash table, keyed by (tree, node), has
64-bit slots: the upper half is a part of the hash, which settles most comparisons; it is probed linearly. Disjoint
batches begin with a small table per tree instead: see :func:`relabel_by_tree`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling.cpu.kernels.random import mix
from manyhop.sampling.cpu.tables import MOST_RUNS, Ints, Mode, Nodes
from manyhop.sampling.random import GAMMA
from manyhop.system.numba_kernels import AHEAD, helper, i32, prefetch, put, u32, u64

# Local ids in disjoint batches: a small table that holds one tree at a time.
#
# A hop visits its frontier tree by tree and adds nodes in the same order, so ``tree`` consists of a few ascending runs.
# Before a tree is visited, its nodes from these runs enter the table. It fits in the L1 cache; the hash table of a
# whole batch does not fit in the L2 cache. It has eight slots per node, so that few collide, at the front of the other
# table's memory. The upper half of a slot is the number of the tree's table in this batch, so that nothing is cleared
# between trees. With many edge types and hops, there are too many runs to search, and the hash table is used.

_NO_TREE = np.iinfo(np.int64).max
_LEAST_BITS = 10  # most trees need no more: then no branch depends on their size
_ONE, _FOUR, _EIGHT = np.uint64(1), np.uint64(4), np.uint64(8)
_HALF, _BITS, _LOW = np.uint64(32), np.uint64(64), np.uint64(0xFFFFFFFF)


@helper
def begin_runs(nodes: Nodes, t: int) -> None:
    """Begin a batch whose nodes are in the order of trees."""
    nodes[t].num_runs, nodes[t].run[0], nodes[t].table_tree, nodes[t].num_tables = 1, 0, _NO_TREE, 0


@helper
def begin_pass(nodes: Nodes, t: int) -> None:
    """Forget the table: nodes of this type were added, or moved, or are looked up in a different order."""
    nodes[t].table_tree = _NO_TREE


@helper
def relabel_by_tree(
    nodes: Nodes, src: int, dst: int, mode: Mode, most: int, neighbor: npt.NDArray[np.uint64], n: int, out: Ints
) -> int:
    """Write local ids of neighbours, and append new nodes; return how many are done before there are too many runs."""
    node, tree, slots = u64(nodes[src].node, 1 << 62), u64(nodes[src].tree, 1 << 62), u64(nodes[src].slots, 1 << 62)
    dst_node, tree_of_dst = u32(mode.dst_node, n), u64(nodes[dst].tree, 1 << 62)
    x, all, last = np.uint64(0), np.uint64(n), np.uint64(dst_node[n - 1])
    while x < all:
        a, end = np.uint64(dst_node[x]), np.uint64(nodes[src].count)
        b, r = a, tree_of_dst[a]
        while b < last and tree_of_dst[b + _ONE] == r:
            b += _ONE
        bound = min(np.int64(b - a + _ONE) * most, np.int64(all - x))
        fits = nodes[src].table_tree == np.int64(r) and np.int64(end) + bound <= nodes[src].table_capacity
        if not fits and not _make_table(nodes, src, r, bound):
            return np.int64(x)
        shift = _BITS - np.uint64(nodes[src].table_bits)
        mask = (_ONE << np.uint64(nodes[src].table_bits)) - _ONE
        entry = _first_entry(nodes, src)
        while x < all and np.uint64(dst_node[x]) <= b:
            u = neighbor[x]
            at = u * GAMMA >> shift
            local = slots[at] - entry  # large if the slot is empty
            while local < end and node[local] != u:
                at = (at + _ONE) & mask
                local = slots[at] - entry
            if local >= end:
                local = end
                slots[at] = entry + local
                node[end], tree[end] = u, r
                end += _ONE
            out[x] = local
            x += _ONE
        nodes[src].count = int(end)
    return np.int64(n)


@helper
def _first_entry(nodes: Nodes, t: int) -> np.uint64:
    """Return what a slot of the current tree's table holds for local id 0."""
    return np.uint64(nodes[t].num_tables) << _HALF | np.uint64(nodes[t].stamp)


@helper
def _make_table(nodes: Nodes, t: int, r: np.uint64, n: int) -> bool:
    """Build a table of the nodes of tree ``r``, with memory for ``n`` more; return whether runs are few enough."""
    node, tree, end = u64(nodes[t].node, 1 << 62), u64(nodes[t].tree, 1 << 62), nodes[t].count
    run, cursor = nodes[t].run, nodes[t].cursor
    if np.int64(r) < nodes[t].table_tree:
        for q in range(nodes[t].num_runs):
            cursor[q] = run[q]
    last = nodes[t].num_runs - 1
    if run[last] < end and tree[end - 1] > r:
        if last + 1 == MOST_RUNS:
            return False
        last += 1
        run[last], nodes[t].num_runs = end, last + 1
    run[last + 1] = end
    if run[last] == end or tree[end - 1] < r:
        cursor[last] = end
    bits, most, count, end_id = _LEAST_BITS, nodes[t].mask + 1, 0, np.uint64(end)
    while 1 << bits < 8 * n and 1 << bits < most:
        bits += 1
    while True:
        nodes[t].num_tables += 1
        slots, entry = u64(nodes[t].slots, 1 << bits), _first_entry(nodes, t)
        shift, mask = _BITS - np.uint64(bits), (_ONE << np.uint64(bits)) - _ONE
        count, room = 0, (1 << bits) // 2 if 1 << bits < most else most
        for q in range(last + 1):
            c, first, stop = cursor[q], run[q], run[q + 1]
            while c > first and tree[c - 1] >= r:
                c -= 1
            while c < stop and tree[c] < r:
                c += 1
            while c < stop and tree[c] == r and count < room:
                at = node[c] * GAMMA >> shift
                while slots[at] - entry < end_id:
                    at = (at + _ONE) & mask
                slots[at] = entry + np.uint64(c)
                c += 1
                count += 1
            cursor[q] = c
        if count < room:
            break
        bits += 1
    nodes[t].table_tree, nodes[t].table_bits = int(r), bits
    nodes[t].table_capacity = end - count + ((1 << bits) // 4 * 3 if 1 << bits < most else most)
    return True


@helper
def hash_of(tree: np.uint64, node: np.uint64) -> np.uint64:
    """Spreads (tree, node) over 64 bits; the low ones choose the slot, the upper ones are stored in it."""
    return mix(node + GAMMA * tree)


@helper
def find(
    slots: npt.NDArray[np.uint64], mask: np.uint64, stamp: np.uint64, h: np.uint64, tree: np.uint64,
    node: np.uint64, nodes_of_batch: npt.NDArray[np.uint64], trees_of_batch: npt.NDArray[np.uint64],
) -> tuple[np.uint64, bool]:  # fmt: skip
    """Return the slot that holds (tree, node), or the empty one where it belongs; and whether it exists."""
    at = h & mask
    while True:
        slot = slots[at]
        value = slot & _LOW
        if value < stamp:
            return at, False
        if slot >> _HALF == h >> _HALF:
            i = value - stamp
            if nodes_of_batch[i] == node and trees_of_batch[i] == tree:
                return at, True
        at = (at + _ONE) & mask


@helper
def plant(nodes: Nodes, t: int, seeds: npt.NDArray[np.uint64], disjoint: bool, first_tree: int) -> None:
    """Begin a batch with the seeds of one type; marks repeated copies of a seed."""
    n = seeds.size
    node, tree, copy = u64(nodes[t].node, n), u64(nodes[t].tree, n), u32(nodes[t].copy, 2 * n)
    stamp, mask = np.uint64(nodes[t].stamp), np.uint64(nodes[t].mask)
    copies = copy[n:]  # copies so far, by local id of the first
    nodes[t].any_copy = 0
    for i in range(n):
        u, r = seeds[i], np.uint64(first_tree + i if disjoint else 0)
        node[i], tree[i], copy[i], copies[i], first = u, r, 0, 0, -1
        if disjoint:
            pass  # no seed is in the tree of another
        elif nodes[t].mask < 0:
            table = i32(nodes[t].slots, 1 << 62)
            first = np.int64(table[u]) - nodes[t].stamp
            if first < 0:
                table[u] = nodes[t].stamp + i
        else:
            h = hash_of(r, u)
            slots = u64(nodes[t].slots, 1 << 62)
            at, known = find(slots, mask, stamp, h, r, u, node, tree)
            first = np.int64((slots[at] & _LOW) - stamp) if known else -1
            if not known:
                slots[at] = (h >> _HALF) << _HALF | (stamp + np.uint64(i))
        if first >= 0:
            copies[first] += 1
            copy[i] = copies[first]
            nodes[t].any_copy = 1
    nodes[t].count = n
    nodes[t].num_seeds = n


@helper
def relabel(nodes: Nodes, src: int, dst: int, mode: Mode, most: int, n: int, out: Ints) -> None:
    """Write local ids of a chunk's ``n > 0`` neighbours, of node type ``src``, and append new nodes.

    ``most``: edges of a frontier node, at most.
    """
    neighbor = u64(mode.neighbor, n + AHEAD)
    for x in range(AHEAD):  # for the prefetches
        neighbor[n + x] = neighbor[n - 1]
    if nodes[src].mask < 0:
        _by_table(nodes, src, neighbor, n, out, mode.past > 0)
        return
    done = 0
    if nodes[src].num_runs > 0:
        done = relabel_by_tree(nodes, src, dst, mode, most, neighbor, n, out)
        if done < n:
            hash_trees(nodes, src)
    if done < n:
        _by_hash(nodes, src, dst, mode, neighbor, done, n, out)


@helper
def _by_table(nodes: Nodes, src: int, neighbor: npt.NDArray[np.uint64], n: int, out: Ints, past: bool) -> None:
    node = u64(nodes[src].node, 1 << 62)
    table, base = i32(nodes[src].slots, 1 << 62), np.uint64(nodes[src].slots)
    stamp, end = nodes[src].stamp, np.uint64(nodes[src].count)
    for x in range(n):
        prefetch(base + _FOUR * neighbor[x + AHEAD])
        u = neighbor[x]
        value = np.int64(table[u])
        is_new = value < stamp  # without a branch, which would often be predicted wrongly
        value = stamp + np.int64(end) if is_new else value
        table[u] = value
        node[end] = u
        end += np.uint64(is_new)
        put(out, x, value - stamp, past)
    nodes[src].count = np.int64(end)


@helper
def _by_hash(
    nodes: Nodes, src: int, dst: int, mode: Mode, neighbor: npt.NDArray[np.uint64], first: int, n: int, out: Ints
) -> None:
    node, tree = u64(nodes[src].node, 1 << 62), u64(nodes[src].tree, 1 << 62)
    slots, base = u64(nodes[src].slots, 1 << 62), np.uint64(nodes[src].slots)
    mask, stamp = np.uint64(nodes[src].mask), np.uint64(nodes[src].stamp)
    end = np.uint64(nodes[src].count)
    dst_node, tree_of_dst = u32(mode.dst_node, n), u64(nodes[dst].tree, 1 << 62)
    hashes = u64(mode.hash, n + AHEAD)
    disjoint = mode.disjoint > 0
    for x in range(first, n):
        r = tree_of_dst[dst_node[x]] if disjoint else np.uint64(0)
        hashes[x] = hash_of(r, neighbor[x])
    for x in range(AHEAD):
        hashes[n + x] = hashes[n - 1]
    for x in range(first, n):
        prefetch(base + _EIGHT * (hashes[x + AHEAD] & mask))
        u, h = neighbor[x], hashes[x]
        r = tree_of_dst[dst_node[x]] if disjoint else np.uint64(0)
        at, known = find(slots, mask, stamp, h, r, u, node, tree)
        if known:
            out[x] = (slots[at] & _LOW) - stamp
        else:
            slots[at] = (h >> _HALF) << _HALF | (stamp + end)
            node[end] = u
            tree[end] = r
            out[x] = end
            end += _ONE
    nodes[src].count = end


@helper
def hash_trees(nodes: Nodes, t: int) -> None:
    """Enter all nodes into the hash table, if each tree has a small table."""
    if nodes[t].num_runs > 0:
        nodes[t].num_runs = 0
        nodes[t].stamp += nodes[t].count  # invalidate entries of small tables
        rehash(nodes, t)


@helper
def rehash(nodes: Nodes, t: int) -> None:
    """Enter all nodes of the batch into an empty hash table, which replaces a smaller one."""
    n = nodes[t].count
    node, tree = u64(nodes[t].node, n), u64(nodes[t].tree, n)
    slots, mask, stamp = u64(nodes[t].slots, 1 << 62), np.uint64(nodes[t].mask), np.uint64(nodes[t].stamp)
    for i in range(n):
        h = hash_of(tree[i], node[i])
        at, known = find(slots, mask, stamp, h, tree[i], node[i], node, tree)
        if not known:  # copies of a seed have no slot
            slots[at] = (h >> _HALF) << _HALF | (stamp + np.uint64(i))
