"""Running sums of the weights of each column: compiled, since every sum must run in stored order."""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt


@numba.njit(nogil=True, cache=True)
def cumulate_columns(
    colptr: npt.NDArray[np.int64], weight: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """``cumw [num_edges] float64`` and the number of positive weights ``[num_dst] int64`` of each column."""
    cumw = np.empty(weight.size, np.float64)
    num_positive = np.zeros(colptr.size - 1, np.int64)
    for v in range(colptr.size - 1):
        total = 0.0
        for e in range(colptr[v], colptr[v + 1]):
            before = total
            total += weight[e]
            cumw[e] = total
            num_positive[v] += total > before  # not weight > 0: a weight lost in rounding is never drawn
    return cumw, num_positive
