"""A graph's tables spread over the GPUs of each node, which all of them read as if they were their own."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from manyhop.features.whole_memory.filling import copy_overlap
from manyhop.features.whole_memory.memory import WholeMemory
from manyhop.graph import CSC, Graph
from manyhop.ranks import control
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop.system.arrays import flat_bytes

_ALIGNMENT = 256  # bytes; what memory of a table's own would have


def share_graph(graph: Graph, *, timeout: float = DEFAULT_TIMEOUT) -> tuple[Graph, WholeMemory]:
    """Put a graph into memory that the GPUs of a node hold together. All ranks call it, with the same graph.

    Every rank copies its part of the tables, so a graph in memory that ranks share is read once per node. One
    allocation holds all tables; each GPU has the same share of it.

    Args:
        graph: its tables in memory of the host or of this rank's GPU.
        timeout: seconds to wait for other ranks.

    Returns:
        The graph, whose tables are CUDA tensors, for ``GPUSampler``; and the memory, which is there until it is closed,
        or the run ends.

    Raises:
        CapacityError: there is not enough memory on the GPUs.
        RankError: ranks have different graphs, or did not come in time.
    """
    tables = list(tables_of(graph))
    facts = zlib.crc32(repr([(name, list(table.shape), str(table.dtype)) for name, table in tables]).encode())
    control.agree("a graph over several GPUs", {"tables": facts}, timeout=timeout)
    begins, total = lay_out([table.nbytes for _, table in tables])
    memory = WholeMemory((total,), torch.uint8, name="the topology", timeout=timeout)
    local, mine = memory.local, memory.local_rows
    for begin, (_, table) in zip(begins, tables, strict=True):
        copy_overlap(flat_bytes(table), range(begin, begin + table.nbytes), local, mine)
    memory.finish("is copied")
    whole = memory.whole
    views = {
        name: whole[begin : begin + table.nbytes].view(table.dtype)
        for begin, (name, table) in zip(begins, tables, strict=True)
    }
    return with_tables(graph, views), memory


def tables_of(graph: Graph) -> Iterator[tuple[str, Tensor]]:
    """The tables that a graph consists of, and their names."""
    for edge_type, csc in graph.csc.items():
        for name, table in csc.tables().items():
            yield f"{edge_type} {name}", table
    for node_type, times in graph.node_time.items():
        yield f"{node_type} time", times


def with_tables(graph: Graph, tables: dict[str, Tensor]) -> Graph:
    """The graph with other tensors in place of its own, named as :func:`tables_of` does."""
    csc: dict[tuple[str, str, str], CSC] = {}
    for edge_type, edges in graph.csc.items():
        present: dict[str, Any] = {name: tables[f"{edge_type} {name}"] for name in edges.tables()}
        csc[edge_type] = replace(edges.made(), **present)
    node_time = {node_type: tables[f"{node_type} time"] for node_type in graph.node_time}
    return replace(graph, csc=csc, node_time=node_time)


def lay_out(sizes: list[int]) -> tuple[list[int], int]:
    """Where tables of so many bytes begin in one piece of memory, and how large that is."""
    begins, end = [], 0
    for size in sizes:
        begins.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return begins, end
