"""The CPU backend of neighbour sampling: equal to the reference bit for bit, compiled by numba when first used."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop.graph import Graph
from manyhop.sampling import _cpu_tables as c
from manyhop.sampling._bidirectional import to_bidirectional
from manyhop.sampling._check import check_request, check_spec
from manyhop.sampling._contract import NeighborSpec, NodeRequest, SampledSubgraph
from manyhop.sampling._cpu_output import (
    Empty,
    copy_arrays,
    describe_edges,
    empty,
    induced_edges,
    node_column,
    nodes_per_hop,
)
from manyhop.sampling._cpu_workspace import Workspace

_LOW64 = (1 << 64) - 1


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
        self._edges = describe_edges(graph, temporal=spec.temporal is not None)
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
        copy_arrays(moves)
        return outputs

    def _result(
        self,
        ws: Workspace,
        outputs: list[tuple[Tensor, Tensor]],
        node_counts: list[list[int]],
        edge_counts: list[list[int]],
    ) -> SampledSubgraph:
        graph, spec = self.graph, self.spec
        if spec.subgraph == "induced":
            outputs = induced_edges(ws, self._edges, self._empty)
        elif self._num_hops == 0:
            outputs = self._allocate(ws, [0] * len(self._types), [0] * len(self._types))
        directional = spec.subgraph == "directional"
        edges_per_hop = [list(n) for n in zip(*edge_counts, strict=True)] or [[] for _ in self._types]
        sample = SampledSubgraph(
            node=node_column(ws, graph.node_types, c.NODE, self._empty),
            row={t[0]: pair[0] for t, (pair, _) in zip(self._types, outputs, strict=True)},
            col={t[0]: pair[1] for t, (pair, _) in zip(self._types, outputs, strict=True)},
            edge_id={t[0]: edge_id for t, (_, edge_id) in zip(self._types, outputs, strict=True)},
            tree=node_column(ws, graph.node_types, c.TREE, self._empty) if spec.disjoint else None,
            num_sampled_nodes=nodes_per_hop(graph.node_types, node_counts) if directional else None,
            num_sampled_edges=dict(zip(graph.edge_types, edges_per_hop, strict=True)) if directional else None,
        )
        return to_bidirectional(sample, spec.reverse or {}) if spec.subgraph == "bidirectional" else sample
