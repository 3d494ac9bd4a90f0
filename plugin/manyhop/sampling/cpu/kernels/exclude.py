"""Between the passes of a hop, where edges are excluded: picked edges with such ids are dropped.

The ids of an edge type form a hash set with at least four slots per id, so that most questions end at the first one.
"""

from __future__ import annotations

import numpy as np

from manyhop.sampling.cpu.tables import Edges, Found, Ints, Mode
from manyhop.sampling.random import GAMMA
from manyhop.system.numba_kernels import AHEAD, helper, i64, prefetch, u32, u64

_FOUR, _EIGHT, _HALF = np.uint64(4), np.uint64(8), np.uint64(32)
_EMPTY = np.int64(-1)  # no edge has this id


@helper
def _home(edge_id: np.int64, mask: int) -> np.int64:
    return np.int64((np.uint64(edge_id) * GAMMA) >> _HALF) & mask


@helper
def build_sets(found: Found) -> None:
    """Make the sets of all edge types from the ids that a request gives."""
    for t in range(len(found)):
        if found[t].num_excluded > 0:
            mask = found[t].excluded_mask
            slots = i64(found[t].excluded, mask + 1)
            slots[:] = _EMPTY
            for edge_id in i64(found[t].exclude, found[t].num_excluded):
                at = _home(edge_id, mask)
                while slots[at] != _EMPTY and slots[at] != edge_id:
                    at = (at + 1) & mask
                slots[at] = edge_id


@helper
def is_excluded(slots: Ints, edge_id: np.int64) -> bool:
    """Whether an id is in a set."""
    mask = slots.size - 1
    at = _home(edge_id, mask)
    while slots[at] != _EMPTY:
        if slots[at] == edge_id:
            return True
        at = (at + 1) & mask
    return False


@helper
def drop_picked(edges: Edges, found: Found, mode: Mode, t: int, n: int) -> int:
    """Drop excluded edges from the ``n > 0`` picks of a chunk; returns how many are left, in their order."""
    position, dst_node = u64(mode.position, n + AHEAD), u32(mode.dst_node, n)
    slots = i64(found[t].excluded, found[t].excluded_mask + 1)
    perm, wide = np.uint64(edges[t].perm), edges[t].perm_wide > 0
    perm32, perm64 = u32(edges[t].perm, 1 << 62), i64(edges[t].perm, 1 << 62)
    for x in range(AHEAD):  # for the prefetches
        position[n + x] = position[n - 1]
    kept = 0
    for x in range(n):
        p = position[x]
        edge_id = np.int64(p)
        if edges[t].perm != 0:
            prefetch(perm + (_EIGHT if wide else _FOUR) * position[x + AHEAD])
            edge_id = perm64[p] if wide else np.int64(perm32[p])
        position[kept], dst_node[kept] = p, dst_node[x]
        kept += 0 if is_excluded(slots, edge_id) else 1
    return kept
