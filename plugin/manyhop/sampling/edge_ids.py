"""Which edges join pairs of nodes: their ids, as requests exclude them."""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import CSC, columns
from manyhop.sampling.lookup import Ints, IntsOfAnySize, first_not_below
from manyhop.system.memory import require_memory


class EdgeIds:
    """The user's ids of the edges of one type, by endpoints. Built when first asked; safe to share between threads.

    It holds the sources of each destination, sorted: the topology's own table where that is sorted already.

    Args:
        csc: the edges.
    """

    def __init__(self, csc: CSC) -> None:
        self._csc = csc
        self._table: tuple[Ints, IntsOfAnySize, IntsOfAnySize | None] | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> CSC:
        return self._csc

    def __setstate__(self, csc: CSC) -> None:
        EdgeIds.__init__(self, csc)

    def between(self, src: Tensor, dst: Tensor) -> Tensor:
        """Return ``[n] int64``: the ids of all edges from ``src[i]`` to ``dst[i]``, parallel ones included.

        Args:
            src: ``[num_pairs] int64`` nodes on the CPU; repeated pairs give repeated ids.
            dst: ``[num_pairs] int64``.

        Raises:
            InputError: nodes out of range.
            CapacityError: the table does not fit in memory.
        """
        begin, source, edge_id = self._built()
        s, d = src.numpy(), dst.numpy()
        if s.size and (min(s.min(), d.min()) < 0 or s.max() >= self._csc.num_src or d.max() >= self._csc.num_dst):
            raise InputError(
                f"Expected sources in [0, {self._csc.num_src}) and destinations in [0, {self._csc.num_dst}), got "
                f"{s.min()} to {s.max()} and {d.min()} to {d.max()}. Check the ids."
            )
        low, high = begin[d], begin[d + 1]
        first, end = np.split(first_not_below(source, np.tile(low, 2), np.tile(high, 2), np.append(s, s + 1)), 2)
        count = end - first
        if (count <= 1).all():  # no parallel edges: the usual case
            at = first[count > 0]
        else:
            at = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(count.sum())
        return torch.from_numpy(at if edge_id is None else edge_id[at].astype(np.int64))

    def prepare(self) -> None:
        """Build the table.

        Raises:
            CapacityError: it does not fit in memory.
        """
        self._built()

    def _built(self) -> tuple[Ints, IntsOfAnySize, IntsOfAnySize | None]:
        """``begin [num_dst + 1]``; the sources of node ``d`` at ``[begin[d], begin[d + 1])``; ids, unless positions."""
        if self._table is None:
            with self._lock:
                if self._table is None:
                    self._table = _build(self._csc.made())
        return self._table


def _build(csc: CSC) -> tuple[Ints, IntsOfAnySize, IntsOfAnySize | None]:
    begin: Ints = csc.colptr.numpy()
    source: IntsOfAnySize = csc.row.numpy()
    edge_id: IntsOfAnySize | None = None if csc.perm is None else csc.perm.numpy()
    falls = np.zeros(source.size + 1, np.bool_)
    np.less(source[1:], source[:-1], out=falls[1:-1])
    falls[begin] = False  # from one column to the next
    if not falls.any():
        return begin, source, edge_id
    require_memory(
        f"Looking up the ids of {csc.num_edges} edges by their endpoints",
        32 * csc.num_edges,  # sorting takes more than the table
        "Leave exclude_seed_edges out, or use a machine with more memory.",
    )
    column = torch.repeat_interleave(torch.arange(csc.num_dst), torch.diff(csc.colptr))
    by_source = columns.group(column, csc.row, csc.num_dst, csc.num_src)  # its columns are our sources
    ordered = columns.group(by_source.position, by_source.row, csc.num_edges, csc.num_dst)
    order = ordered.row.numpy()
    sorted_ids = order if edge_id is None else edge_id[order]
    return begin, source[order], sorted_ids.astype(np.int32, copy=False) if order.size <= 2**31 else sorted_ids
