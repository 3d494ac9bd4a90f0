"""Topologies in files that are larger than memory, of which the system keeps what is read often."""

from __future__ import annotations

from manyhop.graph import Graph
from manyhop.memory.mapped_files import reside_in_files
from manyhop.memory.placement import RESERVE
from manyhop.system.memory import available_memory


def pages_edges(graph: Graph) -> bool:
    """Return whether edges are in files that do not fit in memory; if so, have the system read single pages of them.

    Otherwise a fault reads megabytes around a neighbour, for which the system drops pages that are read more often.
    """
    tables = [table for csc in graph.csc.values() for table in (csc.colptr, csc.row) if table.numel()]
    free = available_memory()
    if free is None or sum(table.nbytes for table in tables) <= (1 - RESERVE) * free:
        return False
    in_files = reside_in_files([table.data_ptr() for table in tables])
    found = [table for table, in_file in zip(tables, in_files, strict=True) if in_file]
    if sum(table.nbytes for table in found) <= (1 - RESERVE) * free:
        return False
    from manyhop.system.paging import advise_random

    for table in found:
        advise_random(table.data_ptr(), table.nbytes)
    return True
