"""The baseline of the benchmark: neighbour sampling as one plain loop per node, compiled, on one thread.

It makes the same picks as the engine (uniform, without replacement, one edge type, distinct seeds) and returns the same
four tensors, but does everything for a node before it looks at the next one, with 64-bit ids throughout: what one
writes first. Its distance from the engine can be measured wherever manyhop runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.sampling import BatchKey
from manyhop.sampling._random import GAMMA, Use, fold, make_key

_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_U1, _U27, _U30, _U31, _U32 = (np.uint64(x) for x in (1, 27, 30, 31, 32))
_LOW = np.uint64(0xFFFFFFFF)

Ints = npt.NDArray[np.int64]


class FusedSampler:
    """Samples one batch at a time; every thread needs one of its own.

    Args:
        colptr: ``[num_nodes + 1] int64``.
        row: ``[num_edges] int64``.
        fanout: neighbours per node, hop by hop, at most 64 each.
    """

    def __init__(self, colptr: Tensor, row: Tensor, fanout: Sequence[int]) -> None:
        self._colptr, self._row = colptr.numpy(), row.numpy()
        self._fanout = np.array(fanout, np.int64)
        self._stamp = 1
        self._table = np.zeros(colptr.numel() - 1, np.int64)
        self._buffers: tuple[Ints, ...] = ()

    def sample(self, key: BatchKey, seeds: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Nodes, rows, columns and edge ids of a batch, all int64."""
        largest = seeds.numel() * np.cumprod(np.maximum(self._fanout, 1))
        num_edges = int(largest.sum())
        if not self._buffers or self._buffers[1].size < num_edges:
            self._buffers = tuple(np.empty(n, np.int64) for n in (seeds.numel() + num_edges, *[num_edges] * 3))
        hop_keys = [fold(make_key(Use.NEIGHBOR, *key, hop, 0), 0) for hop in range(self._fanout.size)]
        n, m = _sample(
            self._colptr,
            self._row,
            seeds.numpy(),
            self._fanout,
            np.array(hop_keys, np.uint64),
            self._table,
            self._stamp,
            *self._buffers,
        )
        self._stamp += n
        node, row, col, edge = self._buffers
        return (
            torch.from_numpy(node[:n].copy()),
            torch.from_numpy(row[:m].copy()),
            torch.from_numpy(col[:m].copy()),
            torch.from_numpy(edge[:m].copy()),
        )


@numba.njit(inline="always")
def _mix(z: np.uint64) -> np.uint64:
    z = (z ^ (z >> _U30)) * _M1
    z = (z ^ (z >> _U27)) * _M2
    return z ^ (z >> _U31)


@numba.njit(nogil=True, cache=True)
def _sample(
    colptr: Ints,
    row: Ints,
    seeds: Ints,
    fanout: Ints,
    hop_keys: npt.NDArray[np.uint64],
    table: Ints,
    stamp: int,
    node: Ints,
    out_row: Ints,
    out_col: Ints,
    out_edge: Ints,
) -> tuple[int, int]:
    """Fills the four outputs; ``table[v]`` is ``stamp`` plus the local id of ``v``, or below ``stamp`` if it is new."""
    n = m = 0
    for seed in seeds:
        table[seed] = stamp + n
        node[n] = seed
        n += 1
    begin = 0
    picks = np.empty(64, np.int64)
    for hop in range(fanout.size):
        end = n
        for i in range(begin, end):
            v = node[i]
            first, degree = colptr[v], colptr[v + 1] - colptr[v]
            k = min(fanout[hop], degree)
            if k == degree:
                for j in range(k):
                    picks[j] = j
            else:
                key = _mix(hop_keys[hop] + GAMMA * (np.uint64(v) + _U1))
                for j in range(k):
                    r = _mix(key + GAMMA * (np.uint64(j) + _U1))
                    bound = np.uint64(degree - k + j + 1)
                    q = np.int64(((r >> _U32) * bound + (((r & _LOW) * bound) >> _U32)) >> _U32)
                    for x in range(j):
                        if picks[x] == q:
                            q = degree - k + j
                            break
                    picks[j] = q
            for j in range(k):
                edge = first + picks[j]
                u = row[edge]
                local = table[u] - stamp
                if local < 0:
                    local = n
                    table[u] = stamp + n
                    node[n] = u
                    n += 1
                out_row[m] = local
                out_col[m] = i
                out_edge[m] = edge
                m += 1
        begin = end
    return n, m
