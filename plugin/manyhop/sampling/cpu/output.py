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


def describe_edges(graph: Graph, *, temporal: bool = False) -> c.Records:
    """The graph as the kernels see it: a record per edge type.

    Raises:
        GraphError: an array is not contiguous in CPU memory or has an unexpected dtype.
    """
    table = np.zeros(len(graph.csc), c.STORED_EDGES)
    ids = (torch.int32, torch.int64)
    for row, (edge_type, csc) in zip(table, graph.csc.items(), strict=True):
        for column, name, array, dtypes in (
            ("colptr", "colptr", csc.colptr, ids[1:]),
            ("row", "row", csc.row, ids),
            ("perm", "perm", csc.perm, ids),
            ("time", "time", csc.time, ids[1:]),
            ("weight", "weight", csc.weight, (torch.float64,)),
            ("alias", "alias", csc.alias, ids[1:]),
            ("positive", "num_positive", csc.num_positive, ids[1:]),
        ):
            row[column] = 0 if array is None else _address(f"{name} of {edge_type}", array, dtypes)
        row["row_wide"] = csc.row.dtype == torch.int64
        row["perm_wide"] = csc.perm is not None and csc.perm.dtype == torch.int64
        row["src"], row["dst"] = graph.node_types.index(edge_type[0]), graph.node_types.index(edge_type[2])
        row["num_edges"] = csc.num_edges
        if temporal and (codes := csc.time_codes) is not None:
            row["code"], row["bound"] = codes.code.ctypes.data, codes.bound.ctypes.data
    return table


def _address(name: str, array: Tensor, dtypes: tuple[torch.dtype, ...]) -> int:
    if array.device.type != "cpu" or array.dtype not in dtypes or not array.is_contiguous():
        raise GraphError(
            f"Expected {name} contiguous in CPU memory, of dtype {' or '.join(map(str, dtypes))}, got {array.dtype} on "
            f"{array.device}. Build the graph with manyhop.graph.build_graph, and keep it on the CPU for this sampler."
        )
    return array.data_ptr()


def node_columns(
    ws: Workspace, node_types: Sequence[NodeType], columns: Sequence[str], empty: Empty
) -> list[dict[NodeType, Tensor]]:
    """``[num_nodes] int64`` per column and node type: global ids (``node``) or trees (``tree``)."""
    from manyhop.sampling.cpu.kernels.hop import copy_arrays

    found, moves = [], []
    counts = ws.nodes["count"].tolist()
    for column in columns:
        tensors = {}
        for node_type, address, n in zip(node_types, ws.nodes[column].tolist(), counts, strict=True):
            tensors[node_type] = empty((n,), torch.int64)
            moves.append((address, tensors[node_type].data_ptr(), n))
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
    counts = ws.found["num_done"].tolist()
    kept = [ws.found[column].tolist() for column in ("kept_row", "kept_col", "kept_id")]
    for n, *own in zip(counts, *kept, strict=True):
        pair, edge_id = empty((2, n), torch.int64), empty((n,), torch.int64)
        to = pair.data_ptr(), pair.data_ptr() + 8 * n, edge_id.data_ptr()
        moves += [(a, b, n) for a, b in zip(own, to, strict=True)]
        found.append((pair, edge_id))
    copy_arrays(np.array(moves, np.int64).reshape(-1, 3))
    return found


def induced_edges(
    ws: Workspace, edges: c.Records, empty: Empty, find: Callable[[int, Table, int], int] | None = None
) -> list[tuple[Tensor, Tensor]]:
    """All edges among the nodes of the batch, ``([2, n], [n]) int64`` per edge type: pairs, and the user's ids.

    Args:
        find: finds those of an edge type, ``find(t, state, capacity)`` as ``induce_edges`` does, where not all count.
    """
    from manyhop.sampling.cpu.kernels.hop import copy_arrays

    if find is None:
        from manyhop.sampling.cpu.kernels.induced import induce_edges

        find = partial(induce_edges, edges, ws.nodes, ws.found, ws.mode)
    found: list[tuple[Tensor, Tensor]] = []
    for i in range(len(edges)):
        state, capacity, finished = np.zeros(3, np.int64), c.CHUNK, 0
        while not finished:
            capacity *= 2
            ws.reserve_edges(i, capacity, int(state[0]))
            kept = []
            for name in ("row", "col", "id"):
                kept.append(int(ws.found[f"kept_{name}"][i]))
                ws.found[f"out_{name}"][i] = kept[-1]
            finished = find(i, state, capacity)
        n = int(state[0])
        pair, edge_id = empty((2, n), torch.int64), empty((n,), torch.int64)
        to = pair.data_ptr(), pair.data_ptr() + 8 * n, edge_id.data_ptr()
        copy_arrays(np.array([(a, b, n) for a, b in zip(kept, to, strict=True)], np.int64))
        found.append((pair, edge_id))
    return found
