"""From global node ids to local ids where each seed has a tree of its own: a small table of one tree after another.

A hop asks tree by tree, and what it adds lies in that order too: ``TREE`` consists of a few ascending runs. So the
table holds a single tree: it is made from the nodes that the tree has in the runs when the tree's turn comes, and stays
in the L1 cache, whereas the hash table of a batch does not fit into the L2 cache. Its slots, uint32 local ids + 1, are
four times as many as it will have nodes, so that few collide; they lie at the front of the other table's memory. Many
edge types in many hops leave too many runs to search through; then that hash table takes over.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling.cpu.tables import (
    ASKER,
    COUNT,
    CURSOR,
    MASK,
    MOST_RUNS,
    NODE,
    NUM_RUNS,
    RUN,
    SLOTS,
    TABLE_BITS,
    TABLE_ROOM,
    TABLE_TREE,
    TREE,
)
from manyhop.sampling.random import GAMMA
from manyhop.system.numba_kernels import helper, u32, u64

Table = npt.NDArray[np.int64]

_NO_TREE = np.iinfo(np.int64).max
_LEAST_BITS = 9  # most trees need no more: then no branch depends on their size
_ZERO, _ONE, _BITS = np.uint64(0), np.uint64(1), np.uint64(64)


@helper
def begin_runs(nodes: Table, t: int) -> None:
    """Begin a batch; what is there lies in order of trees."""
    nodes[t, NUM_RUNS], nodes[t, RUN], nodes[t, TABLE_TREE] = 1, 0, _NO_TREE


@helper
def begin_pass(nodes: Table, t: int) -> None:
    """Forget the table: nodes of this type were added, or moved, or are looked up in another order."""
    nodes[t, TABLE_TREE] = _NO_TREE


@helper
def relabel_by_tree(
    nodes: Table, src: int, dst: int, mode: Table, neighbor: npt.NDArray[np.uint64], n: int, out: Table
) -> int:
    """Local ids of neighbours; appends those that are new. Returns how many are done: all, or until too many runs."""
    node, tree, slots = u64(nodes[src, NODE], 1 << 62), u64(nodes[src, TREE], 1 << 62), u32(nodes[src, SLOTS], 1 << 62)
    asker, tree_of_asker = u32(mode[ASKER], n), u64(nodes[dst, TREE], 1 << 62)
    x, last = 0, asker[n - 1]
    while x < n:
        a, stop, end = asker[x], n, np.uint64(nodes[src, COUNT])
        r = tree_of_asker[a]
        while a < last and tree_of_asker[a + 1] == r:
            a += 1
        if a < last:
            stop = x + 1
            while asker[stop] <= a:
                stop += 1
        fits = nodes[src, TABLE_TREE] == np.int64(r) and np.int64(end) + stop - x <= nodes[src, TABLE_ROOM]
        if not fits and not _make_table(nodes, src, r, stop - x):
            return x
        shift = _BITS - np.uint64(nodes[src, TABLE_BITS])
        mask = (_ONE << np.uint64(nodes[src, TABLE_BITS])) - _ONE
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
        nodes[src, COUNT] = end
        x = stop
    return n


@helper
def _make_table(nodes: Table, t: int, r: np.uint64, n: int) -> bool:
    """A table of the nodes of tree ``r``, with room for ``n`` more; false if there are too many runs."""
    node, tree, end = u64(nodes[t, NODE], 1 << 62), u64(nodes[t, TREE], 1 << 62), nodes[t, COUNT]
    if np.int64(r) < nodes[t, TABLE_TREE]:
        for q in range(nodes[t, NUM_RUNS]):
            nodes[t, CURSOR + q] = nodes[t, RUN + q]
    last = nodes[t, NUM_RUNS] - 1
    if nodes[t, RUN + last] < end and tree[end - 1] > r:
        if last + 1 == MOST_RUNS:
            return False
        last += 1
        nodes[t, RUN + last], nodes[t, NUM_RUNS] = end, last + 1
    nodes[t, RUN + last + 1] = end
    if nodes[t, RUN + last] == end or tree[end - 1] < r:
        nodes[t, CURSOR + last] = end
    count = 0
    for q in range(last + 1):
        c, stop = nodes[t, CURSOR + q], nodes[t, RUN + q + 1]
        while c < stop and tree[c] < r:
            c += 1
        nodes[t, CURSOR + q] = c
        while c < stop and tree[c] == r:
            c += 1
        count += c - nodes[t, CURSOR + q]
    bits, most = _LEAST_BITS, 2 * (nodes[t, MASK] + 1)
    while 1 << bits < 4 * (count + n) and 1 << bits < most:
        bits += 1
    slots = u32(nodes[t, SLOTS], 1 << bits)
    for at in range(slots.size):
        slots[at] = 0
    shift, mask = _BITS - np.uint64(bits), (_ONE << np.uint64(bits)) - _ONE
    for q in range(last + 1):
        c, stop = nodes[t, CURSOR + q], nodes[t, RUN + q + 1]
        while c < stop and tree[c] == r:
            at = node[c] * GAMMA >> shift
            while slots[at] != _ZERO:
                at = (at + _ONE) & mask
            c += 1
            slots[at] = c
    nodes[t, TABLE_TREE], nodes[t, TABLE_BITS] = r, bits
    nodes[t, TABLE_ROOM] = end - count + ((1 << bits) // 4 * 3 if 1 << bits < most else most)
    return True
