"""Whether an edge exists; shared by all backends."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from manyhop.errors import InputError
from manyhop.graph import CSC

Ints = npt.NDArray[np.int64]


class EdgeLookup:
    """The set of edges of one type, for many questions at once. Built when first asked; safe to share between threads.

    It holds one int64 per distinct edge, ``src * num_dst + dst``, sorted: the destinations of a source lie together.

    Args:
        csc: the edges.

    Raises:
        InputError: ``num_src * num_dst`` exceeds the int64 range.
    """

    def __init__(self, csc: CSC) -> None:
        if csc.num_src * csc.num_dst >= 2**63:
            raise InputError(
                "Expected num_src * num_dst below 2^63 to tell true edges from negatives, got "
                f"{csc.num_src} * {csc.num_dst}. Draw negatives without exclude_true."
            )
        self._csc = csc
        self._num_dst = max(csc.num_dst, 1)
        self._keys: Ints | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> CSC:
        return self._csc

    def __setstate__(self, csc: CSC) -> None:
        EdgeLookup.__init__(self, csc)

    def contains(self, src: Ints, dst: Ints) -> npt.NDArray[np.bool_]:
        """``[n] bool``: whether each pair of ``src [n] int64`` and ``dst [n] int64`` is an edge."""
        keys = self._sorted_keys()
        if keys.size == 0:
            return np.zeros(src.shape, np.bool_)
        wanted = src * self._num_dst + dst
        at = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
        return np.asarray(keys[at] == wanted)

    def destinations(self, src: int) -> Ints:
        """Distinct destinations of one source, ascending."""
        keys = self._sorted_keys()
        begin, end = np.searchsorted(keys, [src * self._num_dst, (src + 1) * self._num_dst])
        return keys[begin:end] - src * self._num_dst

    def edges(self) -> tuple[Ints, Ints]:
        """Sources and destinations of all distinct edges, sorted by (source, destination)."""
        return np.divmod(self._sorted_keys(), self._num_dst)

    def _sorted_keys(self) -> Ints:
        if self._keys is None:
            with self._lock:
                if self._keys is None:
                    degree = np.diff(self._csc.colptr.numpy())
                    dst = np.repeat(np.arange(self._csc.num_dst, dtype=np.int64), degree)
                    self._keys = np.unique(self._csc.row.numpy().astype(np.int64) * self._num_dst + dst)
        return self._keys
