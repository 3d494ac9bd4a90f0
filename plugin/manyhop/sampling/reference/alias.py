"""Numpy reference: the alias table of one column. Written for reading; ``manyhop.graph.alias`` is compared with it.

The sweep over light and heavy entries is that of Hübschle-Schneider and Sanders, "Parallel weighted random sampling"
(2019); alias tables are due to Walker (1977).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FULL = 1 << 32
"""What every entry of a table holds: its threshold is the part that is its own, the rest belongs to its alias."""


def alias_table(weight: Sequence[float]) -> npt.NDArray[np.int64]:
    """``[d]`` entries ``threshold * 2^32 + alias``, for ``d`` weights that are finite and not negative."""
    d, positive = len(weight), [q for q, w in enumerate(weight) if w > 0]
    if not positive:
        return np.zeros(d, np.int64)
    total = 0.0
    for w in weight:  # from left to right, one addition at a time
        total += w
    share = [int(w / total * (d * 2.0**32) + 0.5) for w in weight]
    light = deque(q for q in range(d) if share[q] < FULL)
    heavy = deque(q for q in range(d) if share[q] >= FULL)
    # An entry that gets no threshold is full: its own alias. One of weight zero never is, whatever rounding does.
    table = [(0, q if weight[q] > 0 else positive[0]) for q in range(d)]
    left = share[heavy[0]] if heavy else FULL  # what the first of the heavy entries has left
    while heavy:
        if left >= FULL and light:
            q = light.popleft()
            table[q] = share[q], heavy[0]
            left -= FULL - share[q]
        elif left < FULL and len(heavy) > 1:  # it has become light: the next heavy one fills it up
            q = heavy.popleft()
            table[q] = left, heavy[0]
            left = share[heavy[0]] - (FULL - left)
        else:
            break
    return np.array([threshold << 32 | alias for threshold, alias in table], np.uint64).view(np.int64)
