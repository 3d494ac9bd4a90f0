"""Running sums of the weights of each column: compiled, since every sum must run in stored order."""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt


@numba.njit(nogil=True, cache=True)
def cumulate_columns(
    colptr: npt.NDArray[np.int64],
    weight: npt.NDArray[np.float64],
    cumw: npt.NDArray[np.float64],
    num_positive: npt.NDArray[np.int64],
) -> None:
    """Fill ``cumw [num_edges]`` and the number of positive weights ``[num_dst]``, zero before, of each column."""
    for v in range(colptr.size - 1):
        total = 0.0
        for e in range(colptr[v], colptr[v + 1]):
            before = total
            total += weight[e]
            cumw[e] = total
            num_positive[v] += total > before  # not weight > 0: a weight lost in rounding is never drawn
