"""From global node ids to local ids where each seed has a tree of its own: a small table of one tree after another.

A hop asks tree by tree, and what it adds lies in that order too: ``tree`` consists of a few ascending runs. So the
table holds a single tree: it is made from the nodes that the tree has in the runs when the tree's turn comes, and stays
in the L1 cache, whereas the hash table of a batch does not fit into the L2 cache. Its slots, uint32 local ids + 1, are
four times as many as it will have nodes, so that few collide; they lie at the front of the other table's memory. Many
edge types in many hops leave too many runs to search through; then that hash table takes over.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling.cpu.tables import MOST_RUNS, Ints, Mode, Nodes
from manyhop.sampling.random import GAMMA
from manyhop.system.numba_kernels import helper, u32, u64

_NO_TREE = np.iinfo(np.int64).max
_LEAST_BITS = 9  # most trees need no more: then no branch depends on their size
_ZERO, _ONE, _BITS = np.uint64(0), np.uint64(1), np.uint64(64)


@helper
def begin_runs(nodes: Nodes, t: int) -> None:
    """Begin a batch; what is there lies in order of trees."""
    nodes[t].num_runs, nodes[t].run[0], nodes[t].table_tree = 1, 0, _NO_TREE


@helper
def begin_pass(nodes: Nodes, t: int) -> None:
    """Forget the table: nodes of this type were added, or moved, or are looked up in another order."""
    nodes[t].table_tree = _NO_TREE


@helper
def relabel_by_tree(
    nodes: Nodes, src: int, dst: int, mode: Mode, neighbor: npt.NDArray[np.uint64], n: int, out: Ints
) -> int:
    """Local ids of neighbours; appends those that are new. Returns how many are done: all, or until too many runs."""
    node, tree, slots = u64(nodes[src].node, 1 << 62), u64(nodes[src].tree, 1 << 62), u32(nodes[src].slots, 1 << 62)
    dst_node, tree_of_dst = u32(mode.dst_node, n), u64(nodes[dst].tree, 1 << 62)
    x, last = 0, dst_node[n - 1]
    while x < n:
        a, stop, end = dst_node[x], n, np.uint64(nodes[src].count)
        r = tree_of_dst[a]
        while a < last and tree_of_dst[a + 1] == r:
            a += 1
        if a < last:
            stop = x + 1
            while dst_node[stop] <= a:
                stop += 1
        fits = nodes[src].table_tree == np.int64(r) and np.int64(end) + stop - x <= nodes[src].table_capacity
        if not fits and not _make_table(nodes, src, r, stop - x):
            return x
        shift = _BITS - np.uint64(nodes[src].table_bits)
        mask = (_ONE << np.uint64(nodes[src].table_bits)) - _ONE
        first = end
        for i in range(x, stop):
            u = neighbor[i]
            at = u * GAMMA >> shift
            slot = np.uint64(slots[at])
            while slot != _ZERO and node[slot - _ONE] != u:
                at = (at + _ONE) & mask
                slot = np.uint64(slots[at])
            if slot == _ZERO:
                node[end] = u
                end += _ONE
                slot = end
                slots[at] = slot
            out[i] = slot - _ONE
        tree[first:end] = r
        nodes[src].count = int(end)
        x = stop
    return n


@helper
def _make_table(nodes: Nodes, t: int, r: np.uint64, n: int) -> bool:
    """A table of the nodes of tree ``r``, with memory for ``n`` more; false if there are too many runs."""
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
    count = 0
    for q in range(last + 1):
        c, stop = cursor[q], run[q + 1]
        while c < stop and tree[c] < r:
            c += 1
        cursor[q] = c
        while c < stop and tree[c] == r:
            c += 1
        count += c - cursor[q]
    bits, most = _LEAST_BITS, 2 * (nodes[t].mask + 1)
    while 1 << bits < 4 * (count + n) and 1 << bits < most:
        bits += 1
    slots = u32(nodes[t].slots, 1 << bits)
    for at in range(slots.size):
        slots[at] = 0
    shift, mask = _BITS - np.uint64(bits), (_ONE << np.uint64(bits)) - _ONE
    for q in range(last + 1):
        c, stop = cursor[q], run[q + 1]
        while c < stop and tree[c] == r:
            at = node[c] * GAMMA >> shift
            while slots[at] != _ZERO:
                at = (at + _ONE) & mask
            c += 1
            slots[at] = c
    nodes[t].table_tree, nodes[t].table_bits = int(r), bits
    nodes[t].table_capacity = end - count + ((1 << bits) // 4 * 3 if 1 << bits < most else most)
    return True
