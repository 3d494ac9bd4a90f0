"""LABOR-i, compiled: the probabilities that depend on all nodes that ask.

The columns of an edge type are gathered first: distinct neighbours are numbered, so that rounds work in arrays of their
size.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.sampling.cpu.kernels.labor_column import scale, shares
from manyhop.sampling.cpu.kernels.random import mix
from manyhop.sampling.cpu.kernels.successive import count_positive
from manyhop.sampling.cpu.tables import Edges, Found, Labor
from manyhop.system.numba_kernels import f64, helper, i64, u32, u64

F64s = npt.NDArray[np.float64]

_ZERO, _ONE = np.uint64(0), np.uint64(1)
_CONVERGED = 10_000
_UNIT = 2.0**30


@helper
def _number_neighbors(edges: Edges, found: Found, labor: Labor, t: int, n: int) -> int:
    """Number the distinct neighbours of all columns, and write that of each entry; returns how many they are."""
    start, degree = u64(found[t].start, n), u32(found[t].degree, n)
    first, entry = i64(labor.entry_begin, n), u32(labor.entry, 1 << 62)
    row32, row64, wide = u32(edges[t].row, 1 << 62), u64(edges[t].row, 1 << 62), edges[t].row_wide > 0
    mask = np.uint64(labor.numbers_mask)
    slots = u64(labor.numbers, 2 * (labor.numbers_mask + 1))
    slots[:] = 0
    x, distinct = 0, 0
    for i in range(n):
        first[i] = x
        for p in range(start[i], start[i] + np.uint64(degree[i])):
            node = (row64[p] if wide else np.uint64(row32[p])) + _ONE
            at = mix(node) & mask
            while slots[at << _ONE] != _ZERO and slots[at << _ONE] != node:
                at = (at + _ONE) & mask
            if slots[at << _ONE] == _ZERO:
                slots[at << _ONE], slots[at << _ONE | _ONE] = node, distinct
                distinct += 1
            entry[x] = slots[at << _ONE | _ONE]
            x += 1
    return distinct


@helper
def find_chances(edges: Edges, found: Found, labor: Labor, k: int, t: int, n: int, weighted: bool, block: F64s) -> None:
    """LABOR-i: the factor ``pi`` of each neighbour, and the scale of each column."""
    degree, c = u32(found[t].degree, n), f64(labor.scale, n)
    first, entry, share = i64(labor.entry_begin, n), u32(labor.entry, 1 << 62), f64(labor.entry_share, 1 << 62)
    of_column = f64(labor.chance, 1 << 62)
    num_distinct = _number_neighbors(edges, found, labor, t, n)
    pi, factor = f64(labor.chances, num_distinct), f64(labor.factor, num_distinct)
    for i in range(n):
        d = int(degree[i])
        a = share[first[i] : first[i] + d]
        if weighted:
            start = np.int64(u64(found[t].start, n)[i])
            shares(f64(edges[t].weight + 8 * start, d), block, a)
            m = count_positive(a)
            fanout = m if k < 0 else k
            c[i] = scale(a, 1.0, a, m, fanout, np.float64(fanout), block)
        else:
            a[:] = 1.0
            c[i] = np.float64(d if k < 0 else k) / np.float64(max(d, 1))
    before, turn = 0, 0
    pi[:] = 1.0
    while labor.importance < 0 or turn < labor.importance:
        factor[:] = 0.0
        for i in range(n):
            for x in range(first[i], first[i] + np.int64(degree[i])):
                if share[x] > 0.0:
                    grown = c[i] * share[x] if weighted and turn == 0 else c[i]
                    factor[entry[x]] = max(factor[entry[x]], grown)
        expected = 0
        for u in range(num_distinct):
            pi[u] *= factor[u]
            expected += int(min(pi[u], 1.0) * _UNIT)
        for i in range(n):
            d = int(degree[i])
            a, mine = share[first[i] : first[i] + d], of_column[:d]
            for q in range(d):
                mine[q] = pi[entry[first[i] + q]]
            m = count_positive(a)
            c[i] = scale(a, 1.0 if weighted else np.float64(d), mine, m, m if k < 0 else k, c[i], block)
        if turn > 0 and expected >= before - before // _CONVERGED:
            break
        before = expected
        turn += 1
