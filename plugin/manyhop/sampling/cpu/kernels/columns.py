"""Pointers to the edges of each node in a hop, compiled, for blocks of DGL and GraphBolt."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manyhop.system.numba_kernels import i64, kernel

# columns[i, ...]: the edges of one type in one hop
COL = 0  # address of int64, ascending
NUM_EDGES = 1
NUM_DST = 2
INDPTR = 3  # address of int64 [NUM_DST + 1]: the result
COLUMNS = 4


@kernel("void(int64[:, ::1])")
def fill_indptr(columns: npt.NDArray[np.int64]) -> None:
    """Set ``indptr[v]`` of each row of the table to the first edge whose ``col`` is at least ``v``.

    Every edge writes where its node ends, the last one wins: without a branch per node this is several times as fast as
    looking for the ends.
    """
    for i in range(columns.shape[0]):
        num_edges, num_dst = columns[i, NUM_EDGES], columns[i, NUM_DST]
        col, indptr = i64(columns[i, COL], num_edges), i64(columns[i, INDPTR], num_dst + 1)
        indptr[:] = 0
        for e in range(num_edges):
            indptr[np.uint64(col[e] + 1)] = e + 1
        end = 0
        for v in range(num_dst + 1):
            end = max(end, indptr[v])
            indptr[v] = end
