"""Alias tables of the weights of each column: compiled. ``manyhop.sampling.reference.picks`` is the readable form."""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

_ONE, _HALF, _FULL = np.uint64(1), np.uint64(32), np.uint64(1 << 32)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _share(weight: float, total: float, size: float) -> np.uint64:
    """How much of the column an entry gets, in units of which a full entry holds 2^32."""
    return np.uint64(weight / total * size + 0.5)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _next_light(weight: npt.NDArray[np.float64], total: float, size: float, q: np.uint64) -> np.uint64:
    while q < np.uint64(weight.size) and _share(weight[q], total, size) >= _FULL:
        q += _ONE
    return q


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _next_heavy(weight: npt.NDArray[np.float64], total: float, size: float, q: np.uint64) -> np.uint64:
    while q < np.uint64(weight.size) and _share(weight[q], total, size) < _FULL:
        q += _ONE
    return q


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _sweep(weight: npt.NDArray[np.float64], total: float, alias: npt.NDArray[np.uint64]) -> None:
    """Fill up the light entries of a column, in stored order, from the heavy ones, in stored order."""
    d = np.uint64(weight.size)
    size = np.float64(d) * 2.0**32
    light, heavy = _next_light(weight, total, size, np.uint64(0)), _next_heavy(weight, total, size, np.uint64(0))
    left = _share(weight[heavy], total, size) if heavy < d else _FULL
    while heavy < d:
        if left >= _FULL:
            if light == d:
                return
            share = _share(weight[light], total, size)
            alias[light] = share << _HALF | heavy
            left -= _FULL - share
            light = _next_light(weight, total, size, light + _ONE)
        else:  # it has become light: the next heavy one fills it up
            giver, heavy = heavy, _next_heavy(weight, total, size, heavy + _ONE)
            if heavy < d:
                alias[giver] = left << _HALF | heavy
                left = _share(weight[heavy], total, size) - (_FULL - left)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def fill_aliases(
    colptr: npt.NDArray[np.int64],
    weight: npt.NDArray[np.float64],
    alias: npt.NDArray[np.uint64],
    num_positive: npt.NDArray[np.int64],
) -> bool:
    """Fill ``alias [num_edges]`` and the number of positive weights ``[num_dst]`` of each column.

    Returns:
        Whether the weights of every column have a finite sum; if not, the tables are of no use.
    """
    for v in range(colptr.size - 1):
        begin, end = colptr[v], colptr[v + 1]
        total, positive, first = 0.0, 0, np.uint64(0)
        for e in range(begin, end):
            if weight[e] > 0.0 and positive == 0:
                first = np.uint64(e - begin)
            total += weight[e]
            positive += weight[e] > 0.0
        if total == np.inf:
            return False
        num_positive[v] = positive
        for e in range(begin, end):  # all full; those of weight zero stand for one that has weight
            alias[e] = np.uint64(e - begin) if weight[e] > 0.0 else first
        if positive > 0:
            _sweep(weight[begin:end], total, alias[begin:end])
    return True
