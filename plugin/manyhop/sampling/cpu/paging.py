"""Topologies in files that are larger than memory, of which the system keeps what is read often."""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

from manyhop.graph import Graph
from manyhop.memory.mapped_files import reside_in_files
from manyhop.placement import RESERVE
from manyhop.system.memory import available_memory


def pages_of_edges(graph: Graph) -> npt.NDArray[np.uint64] | None:
    """Have the system read single pages of edges in files that do not fit in memory.

    Otherwise a fault reads megabytes around a neighbour, for which the system drops pages that are read more often.

    Returns:
        ``[a power of two]``, zeros: for the pages that kernels have asked for lately, as many as half of the free
        memory has at most. ``None``: the edges fit, or are in no files.
    """
    tables = [table for csc in graph.csc.values() for table in (csc.colptr, csc.row) if table.numel()]
    free = available_memory()
    if free is None or sum(table.nbytes for table in tables) <= (1 - RESERVE) * free:
        return None
    in_files = reside_in_files([table.data_ptr() for table in tables])
    found = [table for table, in_file in zip(tables, in_files, strict=True) if in_file]
    if sum(table.nbytes for table in found) <= (1 - RESERVE) * free:
        return None
    from manyhop.system.paging import read_no_more_than_asked

    for table in found:
        read_no_more_than_asked(table.data_ptr(), table.nbytes)
    return np.zeros(1 << (free // mmap.PAGESIZE // 2 | 1).bit_length() - 1, np.uint64)


def describe_pages(edges: npt.NDArray[np.void], pages: npt.NDArray[np.uint64] | None) -> None:
    """Pass the pages of :func:`pages_of_edges`, which must live as long, to kernels with the tables of edges."""
    if pages is not None:
        edges["pages"], edges["num_pages"] = pages.ctypes.data, pages.size
