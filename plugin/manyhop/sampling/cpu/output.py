"""What the CPU samplers share: the graph as the kernels see it, and results out of a workspace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.errors import GraphError
from manyhop.graph import Graph, NodeType
from manyhop.sampling.cpu import tables as c
from manyhop.sampling.cpu.workspace import Workspace

Empty = Callable[[tuple[int, ...], torch.dtype], Tensor]
Table = npt.NDArray[np.int64]


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Fresh memory for a result."""
    return torch.empty(shape, dtype=dtype)


def describe_edges(graph: Graph, *, temporal: bool = False) -> Table:
    """The graph as the kernels see it: one row of addresses per edge type.

    Raises:
        GraphError: an array does not lie contiguously in CPU memory or has an unexpected dtype.
    """
    table = np.zeros((len(graph.csc), c.EDGE_COLUMNS), np.int64)
    ids = (torch.int32, torch.int64)
    for row, (edge_type, csc) in zip(table, graph.csc.items(), strict=True):
        for column, name, array, dtypes in (
            (c.COLPTR, "colptr", csc.colptr, ids[1:]),
            (c.ROW, "row", csc.row, ids),
            (c.PERM, "perm", csc.perm, ids),
            (c.TIME, "time", csc.time, ids[1:]),
            (c.WEIGHT, "weight", csc.weight, (torch.float64,)),
            (c.ALIAS, "alias", csc.alias, ids[1:]),
            (c.POSITIVE, "num_positive", csc.num_positive, ids[1:]),
        ):
            row[column] = 0 if array is None else _address(f"{name} of {edge_type}", array, dtypes)
        row[c.ROW_WIDE] = csc.row.dtype == torch.int64
        row[c.PERM_WIDE] = csc.perm is not None and csc.perm.dtype == torch.int64
        row[c.SRC], row[c.DST] = graph.node_types.index(edge_type[0]), graph.node_types.index(edge_type[2])
        row[c.NUM_EDGES] = csc.num_edges
        if temporal and (codes := csc.time_codes) is not None:
            row[c.CODE], row[c.BOUND] = codes.code.ctypes.data, codes.bound.ctypes.data
    return table


def _address(name: str, array: Tensor, dtypes: tuple[torch.dtype, ...]) -> int:
    if array.device.type != "cpu" or array.dtype not in dtypes or not array.is_contiguous():
        raise GraphError(
            f"Expected {name} contiguous in CPU memory, of dtype {' or '.join(map(str, dtypes))}, got {array.dtype} on "
            f"{array.device}. Build the graph with manyhop.graph.build_graph, and keep it on the CPU for this sampler."
        )
    return array.data_ptr()


def node_columns(
    ws: Workspace, node_types: Sequence[NodeType], columns: Sequence[int], empty: Empty
) -> list[dict[NodeType, Tensor]]:
    """``[num_nodes] int64`` per column and node type: global ids (``NODE``) or trees (``TREE``)."""
    from manyhop.sampling.cpu.kernels.hop import copy_arrays

    found, moves = [], []
    nodes = ws.nodes.tolist()
    for column in columns:
        tensors = {}
        for node_type, row in zip(node_types, nodes, strict=True):
            tensors[node_type] = empty((row[c.COUNT],), torch.int64)
            moves.append((row[column], tensors[node_type].data_ptr(), row[c.COUNT]))
        found.append(tensors)
    copy_arrays(np.array(moves, np.int64))
    return found


def nodes_per_hop(node_types: Sequence[NodeType], counts: list[list[int]]) -> dict[NodeType, list[int]]:
    """Nodes that each hop added, from the counts of all types after each hop."""
    totals = zip(*counts, strict=True)  # by type
    return {t: [b - a for a, b in pairwise((0, *n))] for t, n in zip(node_types, totals, strict=True)}


def kept_edges(ws: Workspace, empty: Empty) -> list[tuple[Tensor, Tensor]]:
    """The edges that hops have kept, ``([2, n], [n]) int64`` per edge type: pairs, and the user's ids."""
    from manyhop.sampling.cpu.kernels.hop import copy_arrays

    found: list[tuple[Tensor, Tensor]] = []
    moves = []
    for row in ws.found.tolist():
        n = row[c.NUM_DONE]
        pair, edge_id = empty((2, n), torch.int64), empty((n,), torch.int64)
        to = pair.data_ptr(), pair.data_ptr() + 8 * n, edge_id.data_ptr()
        moves += [(a, b, n) for a, b in zip(row[c.KEPT_ROW : c.KEPT_ID + 1], to, strict=True)]
        found.append((pair, edge_id))
    copy_arrays(np.array(moves, np.int64).reshape(-1, 3))
    return found


def induced_edges(
    ws: Workspace, edges: Table, empty: Empty, find: Callable[[int, Table, int], int] | None = None
) -> list[tuple[Tensor, Tensor]]:
    """All edges among the nodes of the batch, ``([2, n], [n]) int64`` per edge type: pairs, and the user's ids.

    Args:
        find: finds those of an edge type, ``find(t, state, room)`` as ``induce_edges`` does, where not all count.
    """
    from manyhop.sampling.cpu.kernels.hop import copy_arrays

    if find is None:
        from manyhop.sampling.cpu.kernels.induced import induce_edges

        find = partial(induce_edges, edges, ws.nodes, ws.found, ws.mode)
    found: list[tuple[Tensor, Tensor]] = []
    for i in range(len(edges)):
        state, room, finished = np.zeros(3, np.int64), c.CHUNK, 0
        while not finished:
            room *= 2
            ws.reserve_edges(i, room, int(state[0]))
            kept = ws.found[i, c.KEPT_ROW : c.KEPT_ID + 1].tolist()
            ws.found[i, c.OUT_ROW : c.OUT_ID + 1] = kept
            finished = find(i, state, room)
        n = int(state[0])
        pair, edge_id = empty((2, n), torch.int64), empty((n,), torch.int64)
        to = pair.data_ptr(), pair.data_ptr() + 8 * n, edge_id.data_ptr()
        copy_arrays(np.array([(a, b, n) for a, b in zip(kept, to, strict=True)], np.int64))
        found.append((pair, edge_id))
    return found
