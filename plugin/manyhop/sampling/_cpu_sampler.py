"""The CPU backend of neighbour sampling: equal to the reference bit for bit, compiled by numba when first used."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.errors import GraphError
from manyhop.graph import Graph
from manyhop.sampling import _cpu_tables as c
from manyhop.sampling._bidirectional import to_bidirectional
from manyhop.sampling._check import check_request, check_spec
from manyhop.sampling._contract import NeighborSpec, NodeRequest, SampledSubgraph
from manyhop.sampling._cpu_workspace import Workspace

Empty = Callable[[tuple[int, ...], torch.dtype], Tensor]
Table = npt.NDArray[np.int64]

_LOW64 = (1 << 64) - 1


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Fresh memory for a result."""
    return torch.empty(shape, dtype=dtype)


class CPUSampler:
    """Samples neighbours on the CPU; safe to call from several threads, which then run in parallel.

    Args:
        graph: the topology, in CPU memory.
        spec: how to sample; the same for every request.
        empty: makes the tensors of the results; a pipeline passes recycled memory.

    Raises:
        InputError: the spec does not fit the graph, or a request does not fit the spec.
        GraphError: the graph does not lie in CPU memory, or is not laid out as :class:`manyhop.graph.CSC` says.
        CapacityError: a batch has 2^30 or more nodes of a type.
    """

    def __init__(self, graph: Graph, spec: NeighborSpec, *, empty: Empty = empty) -> None:
        check_spec(graph, spec)
        self.graph = graph
        self.spec = spec
        self._empty = empty
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        return {"graph": self.graph, "spec": self.spec, "_empty": self._empty}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    def _prepare(self) -> None:
        from manyhop.sampling import _cpu_hop

        self._kernels = _cpu_hop
        graph, spec = self.graph, self.spec
        self._edges = describe_edges(graph)
        self._types = [(t, graph.node_types.index(t[0]), graph.node_types.index(t[2])) for t in graph.edge_types]
        fanouts = [spec.fanouts[t] for t in graph.edge_types]
        self._num_hops = len(fanouts[0]) if fanouts else 0
        self._fanouts = np.array(fanouts, np.int64).reshape(len(fanouts), self._num_hops).T.copy()
        self._num_nodes = [graph.num_nodes[t] for t in graph.node_types]
        self._local = threading.local()

    def _workspace(self) -> Workspace:
        """The memory of this thread."""
        ws: Workspace | None = getattr(self._local, "workspace", None)
        if ws is None:
            spec = self.spec
            largest = int(self._fanouts.max(initial=0))
            ws = Workspace(self._num_nodes, len(self._types), spec.disjoint, largest, self._kernels.rehash_type)
            ws.mode[c.REPLACE] = spec.replace
            ws.mode[c.WEIGHTED] = spec.weighted
            ws.mode[c.TEMPORAL] = {None: 0, "uniform": 1, "last": 2}[spec.temporal]
            ws.mode[c.DISJOINT] = spec.disjoint
            ws.mode[c.EXPAND_ALL] = spec.expand == "all"
            self._local.workspace = ws
        return ws

    def sample(self, request: NodeRequest) -> SampledSubgraph:
        """Sample around ``request.seeds``."""
        check_request(self.graph, self.spec, request)
        ws = self._workspace()
        keep = self._begin(ws, request)
        key = np.array([part & _LOW64 for part in request.key], np.uint64)
        node_counts = [ws.nodes[:, c.COUNT].tolist()]
        edge_counts: list[list[int]] = []
        done = [0] * len(self._types)
        outputs: list[tuple[Tensor, Tensor]] = []
        for hop in range(self._num_hops):
            for i, (_, _, dst) in enumerate(self._types):
                ws.reserve_frontier(i, node_counts[-1][dst])
            self._kernels.measure_hop(self._edges, ws.nodes, ws.found, ws.mode, self._fanouts[hop])
            totals = ws.found[:, c.TOTAL].tolist()
            self._reserve(ws, node_counts[0], node_counts[-1], totals)
            if hop == self._num_hops - 1 and self.spec.subgraph != "induced":
                outputs = self._allocate(ws, done, totals)
            else:
                self._spill(ws, done, totals)
            self._kernels.sample_hop(self._edges, ws.nodes, ws.found, ws.mode, self._fanouts[hop], key, hop)
            done = [d + n for d, n in zip(done, totals, strict=True)]
            edge_counts.append(totals)
            node_counts.append(ws.nodes[:, c.COUNT].tolist())
        del keep
        return self._result(ws, outputs, node_counts, edge_counts)

    def _begin(self, ws: Workspace, request: NodeRequest) -> list[Tensor]:
        """Enter the seeds; returns tensors that must live as long as the batch is sampled."""
        ws.begin()
        seeds = np.zeros((len(request.seeds), 3), np.int64)
        keep = []
        for i, (node_type, ids) in enumerate(request.seeds.items()):
            t = self.graph.node_types.index(node_type)
            keep.append(ids.contiguous())
            seeds[i] = t, keep[-1].data_ptr(), ids.numel()
            ws.reserve_seeds(t, ids.numel())
        for column, times in ((c.TIME_MAX, request.time_max), (c.TIME_MIN, request.time_min)):
            ws.mode[column] = 0
            if times is not None:
                keep.append(torch.cat([times[t] for t in request.seeds]))
                ws.mode[column] = keep[-1].data_ptr()
        self._kernels.begin_batch(ws.nodes, ws.mode, seeds)
        return keep

    def _reserve(self, ws: Workspace, seeds: list[int], counts: list[int], totals: list[int]) -> None:
        """Room for the nodes that a hop can add, and for its chunks."""
        bounds = counts.copy()
        for n, (_, src, _) in zip(totals, self._types, strict=True):
            bounds[src] += n
        for t, bound in enumerate(bounds):
            if not self.spec.disjoint:
                bounds[t] = min(bound, self._num_nodes[t] + seeds[t])
            ws.reserve_nodes(t, bounds[t])
        ws.reserve_chunk(int(ws.found[:, c.MOST].max(initial=0)))

    def _spill(self, ws: Workspace, done: list[int], totals: list[int]) -> None:
        """Direct the edges of a hop into the workspace."""
        for i, n in enumerate(totals):
            if n > 0:
                addresses = ws.reserve_edges(i, done[i] + n, done[i])
                ws.found[i, c.OUT_ROW : c.OUT_ID + 1] = [a + 8 * done[i] for a in addresses]

    def _allocate(self, ws: Workspace, done: list[int], totals: list[int]) -> list[tuple[Tensor, Tensor]]:
        """Make the tensors of all edges, ``([2, n], [n])`` per type; direct those of the last hop into them."""
        outputs, moves = [], []
        for i, (d, n) in enumerate(zip(done, totals, strict=True)):
            pair, edge_id = self._empty((2, d + n), torch.int64), self._empty((d + n,), torch.int64)
            outputs.append((pair, edge_id))
            to = pair.data_ptr(), pair.data_ptr() + 8 * (d + n), edge_id.data_ptr()
            if d > 0:
                moves += [(a, b, d) for a, b in zip(ws.reserve_edges(i, d, d), to, strict=True)]
            ws.found[i, c.OUT_ROW : c.OUT_ID + 1] = [a + 8 * d for a in to]
        _copy(moves)
        return outputs

    def _result(
        self,
        ws: Workspace,
        outputs: list[tuple[Tensor, Tensor]],
        node_counts: list[list[int]],
        edge_counts: list[list[int]],
    ) -> SampledSubgraph:
        graph, spec = self.graph, self.spec
        node, tree, moves = {}, {}, []
        for t, node_type in enumerate(graph.node_types):
            n = node_counts[-1][t]
            node[node_type] = self._empty((n,), torch.int64)
            moves.append((int(ws.nodes[t, c.NODE]), node[node_type].data_ptr(), n))
            if spec.disjoint:
                tree[node_type] = self._empty((n,), torch.int64)
                moves.append((int(ws.nodes[t, c.TREE]), tree[node_type].data_ptr(), n))
        _copy(moves)
        if spec.subgraph == "induced":
            outputs = self._induce(ws)
        elif self._num_hops == 0:
            outputs = self._allocate(ws, [0] * len(self._types), [0] * len(self._types))
        directional = spec.subgraph == "directional"
        per_hop = np.diff(np.array(node_counts), axis=0, prepend=0).T.tolist()
        edges_per_hop = [list(n) for n in zip(*edge_counts, strict=True)] or [[] for _ in self._types]
        sample = SampledSubgraph(
            node=node,
            row={t[0]: pair[0] for t, (pair, _) in zip(self._types, outputs, strict=True)},
            col={t[0]: pair[1] for t, (pair, _) in zip(self._types, outputs, strict=True)},
            edge_id={t[0]: edge_id for t, (_, edge_id) in zip(self._types, outputs, strict=True)},
            tree=tree if spec.disjoint else None,
            num_sampled_nodes=dict(zip(graph.node_types, per_hop, strict=True)) if directional else None,
            num_sampled_edges=dict(zip(graph.edge_types, edges_per_hop, strict=True)) if directional else None,
        )
        return to_bidirectional(sample, spec.reverse or {}) if spec.subgraph == "bidirectional" else sample

    def _induce(self, ws: Workspace) -> list[tuple[Tensor, Tensor]]:
        """All edges among the sampled nodes, ``([2, n], [n])`` per type."""
        from manyhop.sampling._cpu_induced import induce_edges

        found: list[tuple[Tensor, Tensor]] = []
        for i in range(len(self._types)):
            state, room, finished = np.zeros(3, np.int64), c.CHUNK, 0
            while not finished:
                room *= 2
                addresses = ws.reserve_edges(i, room, int(state[0]))
                ws.found[i, c.OUT_ROW : c.OUT_ID + 1] = addresses
                finished = induce_edges(self._edges, ws.nodes, ws.found, ws.mode, i, state, room)
            n = int(state[0])
            pair, edge_id = self._empty((2, n), torch.int64), self._empty((n,), torch.int64)
            to = pair.data_ptr(), pair.data_ptr() + 8 * n, edge_id.data_ptr()
            if n > 0:
                _copy([(a, b, n) for a, b in zip(addresses, to, strict=True)])
            found.append((pair, edge_id))
        return found


def describe_edges(graph: Graph) -> Table:
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
            (c.CUMW, "cumw", csc.cumw, (torch.float64,)),
            (c.POSITIVE, "num_positive", csc.num_positive, ids[1:]),
        ):
            row[column] = 0 if array is None else _address(f"{name} of {edge_type}", array, dtypes)
        row[c.ROW_WIDE] = csc.row.dtype == torch.int64
        row[c.PERM_WIDE] = csc.perm is not None and csc.perm.dtype == torch.int64
        row[c.SRC], row[c.DST] = graph.node_types.index(edge_type[0]), graph.node_types.index(edge_type[2])
        row[c.NUM_EDGES] = csc.num_edges
    return table


def _address(name: str, array: Tensor, dtypes: tuple[torch.dtype, ...]) -> int:
    if array.device.type != "cpu" or array.dtype not in dtypes or not array.is_contiguous():
        raise GraphError(
            f"Expected {name} contiguous in CPU memory, of dtype {' or '.join(map(str, dtypes))}, got {array.dtype} on "
            f"{array.device}. Build the graph with manyhop.graph.build_graph, and keep it on the CPU for this sampler."
        )
    return array.data_ptr()


def _copy(moves: list[tuple[int, int, int]]) -> None:
    """Copy int64 arrays: ``(from address, to address, number of entries)``; releases the GIL."""
    for source, to, n in moves:
        ctypes.memmove(to, source, 8 * n)
