"""The GPU backend of the Heterogeneous Graph Transformer's sampling: equal to the reference bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.errors import CapacityError, InputError
from manyhop.graph import Graph
from manyhop.sampling._check import check_hgt_spec, check_request
from manyhop.sampling._contract import HGTSpec, NodeRequest, SampledSubgraph
from manyhop.sampling._gpu.induced import Inducer
from manyhop.sampling._gpu.kernels import hgt as kernels
from manyhop.sampling._gpu.transfer import Readback, current_stream, kernel_device, on_stream, upload
from manyhop.sampling._random import Use, make_key

Ints = npt.NDArray[np.int64]

_MAX_NEIGHBORS = kernels.MAX_NEIGHBORS.value
_TILE = 256
_LONG_TILE = 1024
_DRAWS_PER_TILE = 128
_NODES_PER_TILE = 8


class GPUHGTSampler:
    """Samples layer by layer on the GPU, with a budget per node type; safe to call from several threads.

    Budgets and their running sums are float64 sums in a fixed order, which a GPU makes one addition at a time: batches
    and node types are what runs in parallel, so several batches a call are much faster than one.

    Args:
        graph: the topology, in memory that kernels can read.
        spec: how many nodes to draw; the same for every request.
        device: where results lie.

    Raises:
        InputError: the spec does not fit the graph, the device is no GPU, or a request does not fit the graph.
        GraphError: the graph lies where the GPU cannot read it.
        CapacityError: batches that are begun together have too many nodes to number them.
    """

    def __init__(self, graph: Graph, spec: HGTSpec, *, device: torch.device | str) -> None:
        check_hgt_spec(graph, spec)
        self.graph = graph
        self.spec = spec
        self.device = kernel_device(device, "CPUHGTSampler")
        self._inducer = Inducer(graph, self.device)
        self._num_samples = np.array([spec.num_samples[t] for t in graph.node_types], np.int64).T.copy()
        self._share = torch.tensor([0.0] + [1.0 / m for m in range(1, _MAX_NEIGHBORS + 1)], dtype=torch.float64)
        self._share = self._share.to(self.device)

    def sample(self, request: NodeRequest) -> SampledSubgraph:
        """Sample around ``request.seeds``.

        Returns:
            The sample, with ``num_sampled_nodes`` per hop and ``num_sampled_edges`` ``None``.
        """
        return self.begin([request]).finish()[0]

    def begin(self, requests: Sequence[NodeRequest]) -> PendingHGT:
        """Enqueue the sampling of several batches on the current stream.

        Args:
            requests: the batches; their seeds lie on the CPU or on the device.

        Raises:
            InputError: a request does not fit the graph.
        """
        if not requests:
            raise InputError("Expected at least one request, got none.")
        for request in requests:
            on_host = not any(seeds.is_cuda for seeds in request.seeds.values())
            check_request(self.graph, self.spec, request, in_range=on_host)
        return PendingHGT(self, requests)


class PendingHGT:
    """Batches on their way; made by :meth:`GPUHGTSampler.begin`."""

    def __init__(self, sampler: GPUHGTSampler, requests: Sequence[NodeRequest]) -> None:
        self._sampler = sampler
        self._requests = list(requests)
        self._stream = current_stream(sampler.device)
        with on_stream(self._stream):
            self._begin()

    def _begin(self) -> None:
        sampler = self._sampler
        graph, device = sampler.graph, sampler.device
        self._types = graph.node_types
        num_scopes = self._num_scopes = len(self._requests) * len(self._types)
        self._max_nodes = max([1, *graph.num_nodes.values()])
        if (num_scopes + 1) * self._max_nodes >= 2**63 - 1:
            raise CapacityError(
                f"{num_scopes} node types of batches with ids below {self._max_nodes} cannot be numbered in 63 bits. "
                "Begin fewer batches at once."
            )
        self._num_hops = len(sampler._num_samples)
        num_seeds = [[int(r.seeds[t].numel()) if t in r.seeds else 0 for t in self._types] for r in self._requests]
        self._num_seeds: Ints = np.array(num_seeds, np.int64).reshape(num_scopes)
        per_type = sampler._num_samples.sum(0)
        room = self._num_seeds + np.tile(per_type, len(self._requests))
        self._nodes_at: Ints = np.concatenate([[0], np.cumsum(room)])
        hops = [self._plan(hop) for hop in range(self._num_hops)]
        # begin, count and candidates of each scope, then the count after each hop, then whether a seed is no node
        counts = np.zeros((3 + self._num_hops + 1, num_scopes), np.int64)
        counts[1] = self._num_seeds
        state, *tables = upload([counts, *(table for hop in hops for table in hop[:2])], device)
        self._state = state.view(counts.shape)
        self._node, self._copy = self._plant()
        candidates = torch.zeros(1, dtype=torch.int64, device=device)
        budgets = torch.zeros(1, dtype=torch.float64, device=device)
        for hop, (scopes, jobs, list_length, num_candidates, frontier) in enumerate(hops):
            candidates, budgets = self._hop(
                hop,
                (tables[2 * hop], tables[2 * hop + 1], len(jobs)),
                list_length,
                int((scopes[:, 5] - scopes[:, 3]).max()),
                num_candidates,
                frontier,
                candidates,
                budgets,
            )
        self._late = Readback(self._state)

    def _plan(self, hop: int) -> tuple[Ints, Ints, int, int, int]:
        """Tables of scopes and jobs of a hop, lengths of the list and of the candidates, the largest frontier."""
        sampler, graph, types = self._sampler, self._sampler.graph, self._types
        scopes = np.zeros((self._num_scopes, kernels.SCOPE_COLUMNS.value), np.int64)
        jobs = []
        list_at = old_at = new_at = 0
        for s in range(self._num_scopes):
            b, t = divmod(s, len(types))
            num_listed = int(self._num_seeds[s] + sampler._num_samples[:hop, t].sum())
            old = self._most_candidates(hop, s)
            list_old = list_at + num_listed
            end = added = list_old + old
            for e, edge_type in enumerate(graph.edge_types):
                room = self._frontier(hop, b, types.index(edge_type[2]))
                if edge_type[0] != types[t] or room == 0 or graph.csc[edge_type].num_edges == 0:
                    continue
                colptr, row, wide, *_ = sampler._inducer.tables[e]
                key = make_key(Use.HGT_BUDGET, *self._requests[b].key, hop, e).view(np.int64)
                dst = b * len(types) + types.index(edge_type[2])
                jobs.append((s, dst, end, room, colptr, row, wide, key))
                end += room * _MAX_NEIGHBORS
            key = make_key(Use.HGT_PICK, *self._requests[b].key, hop, t).view(np.int64)
            num_samples = sampler._num_samples[hop, t]
            scopes[s] = self._nodes_at[s], old_at, new_at, list_at, list_old, added, end, key, num_samples
            list_at, old_at, new_at = end, old_at + old, new_at + self._most_candidates(hop + 1, s)
        table = np.array(jobs, np.int64).reshape(-1, kernels.JOB_COLUMNS.value)
        return scopes, table, list_at, new_at, max((job[3] for job in jobs), default=0)

    def _frontier(self, hop: int, b: int, t: int) -> int:
        """The most nodes of a type that a hop of a batch asks for."""
        if hop == 0:
            return int(self._num_seeds[b * len(self._types) + t])
        return min(int(self._sampler._num_samples[hop - 1, t]), self._sampler.graph.num_nodes[self._types[t]])

    def _most_candidates(self, hop: int, s: int) -> int:
        """The most candidates of a scope when a hop begins."""
        graph, types = self._sampler.graph, self._types
        b, t = divmod(s, len(types))
        added = sum(
            self._frontier(h, b, types.index(edge_type[2])) * _MAX_NEIGHBORS
            for h in range(hop)
            for edge_type in graph.edge_types
            if edge_type[0] == types[t]
        )
        return int(min(added, graph.num_nodes[types[t]]))

    def _plant(self) -> tuple[Tensor, Tensor]:
        """Memory for all nodes, with the seeds in it, and which copy of a seed each node is."""
        device, num_nodes = self._sampler.device, int(self._nodes_at[-1])
        node = torch.empty(max(num_nodes, 1), dtype=torch.int64, device=device)
        copy = torch.zeros(max(num_nodes, 1), dtype=torch.int32, device=device)
        if self._num_seeds.sum() == 0:
            return node, copy
        types = self._types
        given = [
            (b, t, r.seeds[name])
            for b, r in enumerate(self._requests)
            for t, name in enumerate(types)
            if name in r.seeds
        ]
        at = [self._nodes_at[b * len(types) + t] + np.arange(seeds.numel()) for b, t, seeds in given]
        scope = [np.full(seeds.numel(), b * len(types) + t) for b, t, seeds in given]
        parts: list[Ints | Tensor] = [np.concatenate(at), np.concatenate(scope)]
        far = any(seeds.is_cuda for *_, seeds in given)
        if far:
            limit = [np.full(seeds.numel(), self._sampler.graph.num_nodes[types[t]]) for _, t, seeds in given]
            to, scope_of, limit_of = upload([*parts, np.concatenate(limit)], device)
            seeds = torch.cat([seeds.to(device, non_blocking=True) for *_, seeds in given])
            wrong = (seeds < 0) | (seeds >= limit_of)
            self._state[-1, 0] = wrong.sum()
            seeds = seeds.masked_fill(wrong, 0)
        else:
            to, scope_of, seeds = upload([*parts, torch.cat([seeds for *_, seeds in given])], device)
        node[to] = seeds
        value, order = torch.sort(scope_of * self._max_nodes + seeds, stable=True)
        before = torch.searchsorted(value, value)  # of the same node in the same scope: the place of its first copy
        copy[to[order]] = (torch.arange(value.numel(), device=device) - before).to(torch.int32)
        return node, copy

    def _hop(
        self,
        hop: int,
        tables: tuple[Tensor, Tensor, int],
        list_length: int,
        longest: int,
        num_candidates: int,
        frontier: int,
        candidates: Tensor,
        budgets: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Let the budgets grow, then draw; the candidates and their budgets."""
        device, num_scopes, max_nodes = self._sampler.device, self._num_scopes, self._max_nodes
        scopes, jobs, num_jobs = tables
        counts = self._state
        key = torch.empty(max(list_length, 1), dtype=torch.int64, device=device)
        value = torch.zeros(max(list_length, 1), dtype=torch.float64, device=device)
        if longest > 0:
            kernels.list_what_is_there[(-(-longest // _TILE), num_scopes)](
                scopes, counts, num_scopes, max_nodes, self._node, candidates, budgets, key, value, T=_TILE
            )
        if num_jobs:
            kernels.list_neighbors[(-(-frontier // _NODES_PER_TILE), num_jobs)](
                jobs,
                scopes,
                counts,
                num_scopes,
                max_nodes,
                self._node,
                self._copy,
                self._sampler._share,
                key,
                value,
                B=_NODES_PER_TILE,
            )
        key, order = torch.sort(key[:list_length], stable=True)
        piece = value[order]
        first = torch.empty(max(list_length, 1), dtype=torch.int64, device=device)
        grid = (max(-(-list_length // _TILE), 1),)
        kernels.mark_candidates[grid](scopes, key, order, list_length, max_nodes, first, T=_TILE)
        number = torch.cumsum(first > 0, 0, dtype=torch.int64)
        candidates = torch.empty(max(num_candidates, 1), dtype=torch.int64, device=device)
        budgets, squares, running, left = (
            torch.empty(max(num_candidates, 1), dtype=torch.float64, device=device) for _ in range(4)
        )
        kernels.add_up[grid](
            scopes, key, piece, first, number, list_length, max_nodes, candidates, budgets, squares, T=_TILE
        )
        kernels.sum_squares[(num_scopes,)](scopes, counts, num_scopes, number, squares, running, T=_LONG_TILE)
        picked = torch.empty(max(num_candidates, 1), dtype=torch.int8, device=device)
        kernels.draw_nodes[(num_scopes,)](
            scopes,
            counts,
            num_scopes,
            self._node,
            candidates,
            running,
            left,
            picked,
            counts[3 + hop],
            T=_DRAWS_PER_TILE,
            LONG=_LONG_TILE,
        )
        return candidates, budgets

    def finish(self) -> list[SampledSubgraph]:
        """The samples, once the device has counted; waits for the nodes, then for the number of edges.

        Raises:
            InputError: a request does not fit the graph.
        """
        with on_stream(self._stream):
            return self._finish()

    def _finish(self) -> list[SampledSubgraph]:
        state = self._late.wait().numpy()
        if state[-1, 0]:
            for request in self._requests:
                check_request(self._sampler.graph, self._sampler.spec, request)
        counts = np.vstack([self._num_seeds, state[3 : 3 + self._num_hops]])
        nodes = []
        for b in range(len(self._requests)):
            first = b * len(self._types)
            nodes.append(
                {
                    t: self._node[self._nodes_at[first + i] : self._nodes_at[first + i] + int(counts[-1, first + i])]
                    for i, t in enumerate(self._types)
                }
            )
        edges = self._sampler._inducer.begin(nodes).finish()
        added = np.diff(counts, axis=0, prepend=0)
        return [
            SampledSubgraph(
                node=nodes[b],
                row=edges[b].row,
                col=edges[b].col,
                edge_id=edges[b].edge_id,
                tree=None,
                num_sampled_nodes={t: added[:, b * len(self._types) + i].tolist() for i, t in enumerate(self._types)},
                num_sampled_edges=None,
            )
            for b in range(len(self._requests))
        ]
