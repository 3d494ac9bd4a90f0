"""The CPU backend of the Heterogeneous Graph Transformer's sampling: equal to the reference bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from manyhop.sampling.check import check_request
from manyhop.sampling.contract import HGTSpec, NodeRequest, SampledSubgraph
from manyhop.sampling.cpu.sampler import HostSampler
from manyhop.sampling.cpu.workspace import Workspace, induced_edges, node_columns, nodes_per_hop

_NO_LIMIT = 1 << 62


class _Memory:
    """Memory of one thread: the batch, the candidates, their budgets."""

    def __init__(self, num_nodes: list[int], num_edge_types: int, largest: int, kernels: Any) -> None:
        self.batch = Workspace(num_nodes, num_edge_types, False, largest, kernels)
        self.candidates = Workspace(num_nodes, num_edge_types, False, 0, kernels)
        self.addresses = np.zeros(len(num_nodes), np.int64)
        self.sums = np.empty(0, np.float64)
        self._budgets = [np.empty(0, np.float64) for _ in num_nodes]

    def reserve_candidates(self, t: int, n: int) -> None:
        """Reserve memory for ``n`` candidates of type ``t``; existing entries remain."""
        self.candidates.reserve_nodes(t, n)
        if n > self._budgets[t].size:
            keep = int(self.candidates.nodes["count"][t])
            old, self._budgets[t] = self._budgets[t], np.empty(n + n // 4, np.float64)
            self._budgets[t][:keep] = old[:keep]
            self.addresses[t] = self._budgets[t].ctypes.data
        if 2 * n > self.sums.size:
            self.sums = np.empty(2 * (n + n // 4), np.float64)


class CPUHGTSampler(HostSampler):
    """Samples layer by layer, with a budget per node type; safe to call from multiple threads.

    Its arguments and exceptions are those of :class:`CPUSampler`.
    """

    spec: HGTSpec

    def _prepare(self) -> None:
        from manyhop.sampling.cpu.kernels import hgt
        from manyhop.sampling.cpu.kernels import hop as hop_kernels

        self._kernels, self._hop_kernels = hgt, hop_kernels
        super()._prepare()
        limit = self.spec.max_neighbors
        self._fanout = np.full(len(self._edges), -1 if limit is None else limit, np.int64)
        self._num_samples = np.array([self.spec.num_samples[t] for t in self.graph.node_types], np.int64).T.copy()

    def _memory(self) -> _Memory:
        memory: _Memory | None = getattr(self._local, "memory", None)
        if memory is None:
            largest = max(self.spec.max_neighbors or 0, int(self._num_samples.max(initial=0)))
            memory = self._local.memory = _Memory(self._num_nodes, len(self._edges), largest, self._hop_kernels)
        return memory

    def sample(self, request: NodeRequest) -> SampledSubgraph:
        """Sample around ``request.seeds``.

        Returns:
            The sample, with ``num_sampled_nodes`` per hop and ``num_sampled_edges`` ``None``.
        """
        check_request(self.graph, self.spec, request)
        memory = self._memory()
        ws = memory.batch
        ws.begin(request.key)
        memory.candidates.begin(request.key)
        seeds, keep = self._seeds(ws, request)
        nodes, _, mode = ws.tables
        self._kernels.begin_batch(nodes, mode, seeds)
        del keep
        counts = [ws.nodes["count"].tolist()]
        for hop, num_samples in enumerate(self._num_samples):
            self._hop(memory, counts[-1], num_samples, hop)
            counts.append(ws.nodes["count"].tolist())
        return self._result(ws, counts)

    def _hop(self, memory: _Memory, counts: list[int], num_samples: npt.NDArray[np.int64], hop: int) -> None:
        """Extend the budgets by the neighbours of the nodes added last, then draw the next nodes."""
        ws, candidates = memory.batch, memory.candidates
        for i, dst in enumerate(self._edges["dst"].tolist()):
            ws.reserve_frontier(i, counts[dst])
        self._kernels.measure_columns(self._edges, *ws.tables, self._fanout)
        bounds = candidates.nodes["count"].tolist()
        for src, n in zip(self._edges["src"].tolist(), ws.found["total"].tolist(), strict=True):
            bounds[src] += n
        for t, bound in enumerate(bounds):
            bound = min(bound, self._num_nodes[t])
            memory.reserve_candidates(t, bound)
            ws.reserve_nodes(t, counts[t] + min(bound, int(num_samples[t])))
        ws.reserve_chunk(max(int(num_samples.max(initial=0)), int(ws.found["most"].max(initial=0))))
        limit = _NO_LIMIT if self.spec.max_neighbors is None else self.spec.max_neighbors
        nodes, _, mode = ws.tables
        budgets = candidates.tables[0], memory.addresses
        self._kernels.add_budgets(self._edges, *ws.tables, *budgets, limit, ws.key, hop)
        self._kernels.draw_nodes(nodes, mode, *budgets, memory.sums.ctypes.data, num_samples, ws.key, hop)

    def _result(self, ws: Workspace, counts: list[list[int]]) -> SampledSubgraph:
        limit = -1 if self.spec.max_neighbors is None else self.spec.max_neighbors
        outputs = induced_edges(ws, self._edges, self._empty, limit)
        found = dict(zip(self.graph.edge_types, outputs, strict=True))
        return SampledSubgraph(
            node=node_columns(ws, self._node_types, ("node",), self._empty)[0],
            row={t: pair[0] for t, (pair, _) in found.items()},
            col={t: pair[1] for t, (pair, _) in found.items()},
            edge_id={t: edge_id for t, (_, edge_id) in found.items()},
            tree=None,
            num_sampled_nodes=nodes_per_hop(self._node_types, counts),
            num_sampled_edges=None,
        )
