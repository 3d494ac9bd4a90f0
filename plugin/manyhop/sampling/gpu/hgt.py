"""The GPU backend of the Heterogeneous Graph Transformer's sampling: equal to the reference bit for bit."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.errors import CapacityError, InputError
from manyhop.graph import Graph
from manyhop.sampling.check import check_request, check_spec
from manyhop.sampling.contract import BatchKey, HGTSpec, NodeRequest, SampledSubgraph
from manyhop.sampling.gpu.induced import Inducer, sample_of, tile_of
from manyhop.sampling.gpu.kernels import hgt as kernels
from manyhop.sampling.gpu.transfer import Readback, kernel_device, upload
from manyhop.system.triton_launch import current_stream, low_64_bits, on_stream

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class HopPlan:
    """The tables of one hop, and the sizes of its working memory."""

    scopes: Tensor
    jobs: Tensor
    num_jobs: int
    list_length: int
    longest: int
    """Largest number of nodes and candidates of a scope."""
    num_candidates: int
    candidates: Ints
    """``[num_batches, num_types]``: largest numbers of candidates after the hop."""
    frontier: int
    """Largest number of frontier nodes of a job."""


class HGTPlan:
    """The memory layout for batches with given numbers of seeds.

    Args:
        inducer: the tables of the graph, and the largest number of neighbours per node.
        num_samples: ``[num_hops, num_types] int64``: nodes to add.
        seeds: the bytes of ``[num_batches, num_types] int64``: numbers of seeds.
    """

    def __init__(self, inducer: Inducer, num_samples: Ints, seeds: bytes) -> None:
        self._inducer, graph = inducer, inducer.graph
        num_nodes = np.array([graph.num_nodes[t] for t in graph.node_types], np.int64)
        num_seeds = np.frombuffer(seeds, np.int64).reshape(-1, num_nodes.size)
        self.num_scopes = num_seeds.size
        self.nodes_at: Ints = np.concatenate([[0], np.cumsum(num_seeds + num_samples.sum(0))])
        self.hops: list[HopPlan] = []
        frontier, listed, candidates = num_seeds, num_seeds, np.zeros_like(num_seeds)
        for wanted in num_samples:
            self.hops.append(self._hop(frontier, listed, candidates, wanted, num_nodes))
            frontier = np.broadcast_to(np.minimum(wanted, num_nodes), num_seeds.shape)
            listed = listed + wanted
            candidates = self.hops[-1].candidates

    def _hop(self, frontier: Ints, listed: Ints, old: Ints, wanted: Ints, num_nodes: Ints) -> HopPlan:
        """Return the plan of a hop.

        Args:
            frontier, listed, old: ``[num_batches, num_types]``: most frontier nodes, nodes and candidates before it.
            wanted: ``[num_types]``: nodes to draw.
            num_nodes: ``[num_types]``: nodes of the graph.
        """
        inducer, num_types, jobs = self._inducer, len(num_nodes), []
        assert inducer.limit is not None
        added = np.zeros(self.num_scopes, np.int64)
        for e, (src, dst) in enumerate(inducer.ends):
            for scope, n in zip(range(0, self.num_scopes, num_types), frontier[:, dst].tolist(), strict=True):
                if n > 0 and inducer.has_edges[e]:
                    at = added[scope + src]
                    jobs.append(
                        (scope + src, scope + dst, at, n, *inducer.tables[e][:3], e, self.nodes_at[scope + dst])
                    )
                    added[scope + src] += n * inducer.limit
        table = np.array(jobs, np.int64).reshape(-1, kernels.JOB_COLUMNS.value)
        new = np.minimum(old + added.reshape(old.shape), num_nodes)
        lengths = (listed + old).ravel() + added
        list_at = np.cumsum(lengths) - lengths
        added_at = list_at + (listed + old).ravel()
        table[:, kernels.ADD_AT.value] += added_at[table[:, kernels.SRC_SCOPE.value]]
        scopes = np.stack(
            [
                self.nodes_at[:-1],
                np.cumsum(old) - old.ravel(),
                np.cumsum(new) - new.ravel(),
                list_at,
                list_at + listed.ravel(),
                added_at,
                list_at + lengths,
                np.broadcast_to(wanted, old.shape).ravel(),
            ],
            axis=1,
        )
        return HopPlan(
            scopes=torch.from_numpy(scopes).to(inducer.device),
            jobs=torch.from_numpy(table).to(inducer.device),
            num_jobs=len(jobs),
            list_length=int(lengths.sum()),
            longest=int((listed + old).max()),
            num_candidates=int(new.sum()),
            candidates=new,
            frontier=int(table[:, kernels.FRONTIER_SIZE.value].max(initial=0)),
        )


_TILE = 256
_LONG_TILE = 1024
_DRAWS_PER_TILE = 128
_MOST_PLANS = 16


class GPUHGTSampler:
    """Sample layer by layer on the GPU, with a budget per node type; safe to call from multiple threads.

    Budgets and their prefix sums are float64 sums in a fixed order, which a GPU computes one addition at a time. Only
    batches and node types run in parallel: multiple batches per call are much faster than one.

    Args:
        graph: the topology, in memory that kernels can read.
        spec: how many nodes to draw; identical for all requests. With a limit of neighbours.
        device: where results reside.

    Raises:
        InputError: the spec does not fit the graph or has no limit of neighbours, the device is no GPU, or a request
            does not fit the graph.
        GraphError: the GPU cannot read the graph's memory.
        CapacityError: batches that are begun together have too many nodes to number them.
    """

    collective = False

    def __init__(self, graph: Graph, spec: HGTSpec, *, device: torch.device | str) -> None:
        check_spec(graph, spec)
        if spec.max_neighbors is None:
            raise InputError(
                "Expected max_neighbors from 1 to 1024 on a GPU, got None. Pass a limit, or sample on the CPU."
            )
        self._limit = spec.max_neighbors
        self.graph = graph
        self.spec = spec
        self.device = kernel_device(device, "CPUHGTSampler")
        self._inducer = Inducer(graph, self.device, limit=self._limit)
        self._num_samples = np.array([spec.num_samples[t] for t in graph.node_types], np.int64).T.copy()
        make_plan = functools.partial(HGTPlan, self._inducer, self._num_samples)  # no method: that would be a cycle
        self._plan = functools.lru_cache(_MOST_PLANS)(make_plan)
        types = [t for t, n in graph.num_nodes.items() if n > 0]
        if self.device.type == "cuda" and types:  # compile the kernels
            self.sample(NodeRequest(key=BatchKey(0, 0, 0), seeds={types[0]: torch.zeros(1, dtype=torch.int64)}))

    def sample(self, request: NodeRequest) -> SampledSubgraph:
        """Sample around ``request.seeds``.

        Returns:
            The sample, with ``num_sampled_nodes`` per hop and ``num_sampled_edges`` ``None``.
        """
        return self.begin([request]).finish()[0]

    def begin(self, requests: Sequence[NodeRequest]) -> PendingHGT:
        """Enqueue the sampling of multiple batches on the current stream.

        Args:
            requests: the batches, with seeds on the CPU or on the device.

        Raises:
            InputError: a request does not fit the graph.
        """
        if not requests:
            raise InputError("Expected at least one request, got none.")
        for request in requests:
            check_request(self.graph, self.spec, request, in_range=False)  # seeds may be on the device
        return PendingHGT(self, requests)


class PendingHGT:
    """Batches in flight; created by :meth:`GPUHGTSampler.begin`."""

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
        self._max_nodes = max([1, *graph.num_nodes.values()])
        num_seeds = [[r.seeds[t].numel() if t in r.seeds else 0 for t in self._types] for r in self._requests]
        self._num_seeds: Ints = np.array(num_seeds, np.int64)
        num_scopes, num_hops = self._num_seeds.size, len(sampler._num_samples)
        if (num_scopes + 1) * self._max_nodes >= 2**63 - 1:
            raise CapacityError(
                f"{num_scopes} node types of batches with ids below {self._max_nodes} cannot be numbered in 63 bits. "
                "Begin fewer batches at once."
            )
        self._plan = sampler._plan(self._num_seeds.tobytes())
        # begin, count and candidates of each scope, the count after each hop, the number of seeds out of range
        state = np.zeros((3 + num_hops + 1, num_scopes), np.int64)
        state[1] = self._num_seeds.ravel()
        keys = np.array([[low_64_bits(part) for part in request.key] for request in self._requests], np.int64)
        self._keys, self._state = upload([keys, state], device)
        self._state = self._state.view(state.shape)
        self._node, self._copy = self._plant()
        candidates = torch.zeros(1, dtype=torch.int64, device=device)
        budgets = torch.zeros(1, dtype=torch.float64, device=device)
        for hop in range(num_hops):
            candidates, budgets = self._hop(hop, candidates, budgets)
        self._late = Readback(self._state)

    def _plant(self) -> tuple[Tensor, Tensor]:
        """Allocate the nodes and store the seeds. Return them, and which copy of a seed each node is."""
        device, nodes_at, types = self._sampler.device, self._plan.nodes_at, self._types
        node = torch.empty(max(int(nodes_at[-1]), 1), dtype=torch.int64, device=device)
        copy = torch.zeros(max(int(nodes_at[-1]), 1), dtype=torch.int32, device=device)
        if self._num_seeds.sum() == 0:
            return node, copy
        given = [
            (b, t, r.seeds[name])
            for b, r in enumerate(self._requests)
            for t, name in enumerate(types)
            if name in r.seeds
        ]
        at = [nodes_at[b * len(types) + t] + np.arange(seeds.numel()) for b, t, seeds in given]
        scope = [np.full(seeds.numel(), b * len(types) + t) for b, t, seeds in given]
        limit = [np.full(seeds.numel(), self._sampler.graph.num_nodes[types[t]]) for _, t, seeds in given]
        to, scope_of, limit_of = upload([np.concatenate(column) for column in (at, scope, limit)], device)
        seeds = torch.cat([seeds.to(device, non_blocking=True) for *_, seeds in given])
        wrong = (seeds < 0) | (seeds >= limit_of)
        self._state[-1, 0] = wrong.sum()
        seeds = seeds.masked_fill(wrong, 0)
        node[to] = seeds
        value, order = torch.sort(scope_of * self._max_nodes + seeds, stable=True)
        before = torch.searchsorted(value, value)  # sorted position of the first copy in the same scope
        copy[to[order]] = (torch.arange(value.numel(), device=device) - before).to(torch.int32)
        return node, copy

    def _hop(self, hop: int, candidates: Tensor, budgets: Tensor) -> tuple[Tensor, Tensor]:
        """Add to the budgets, then draw. Return the candidates and their budgets."""
        plan, limit = self._plan.hops[hop], self._sampler._limit
        device, num_scopes, num_types = self._sampler.device, self._plan.num_scopes, len(self._types)
        scopes, counts, max_nodes, list_length = plan.scopes, self._state, self._max_nodes, plan.list_length
        key = torch.empty(max(list_length, 1), dtype=torch.int64, device=device)
        value = torch.empty(max(list_length, 1), dtype=torch.float64, device=device)
        if plan.longest > 0:
            kernels.list_what_is_there[(-(-plan.longest // _TILE), num_scopes)](
                scopes, counts, num_scopes, max_nodes, self._node, candidates, budgets, key, value, T=_TILE
            )
        if plan.num_jobs:
            slots, nodes = tile_of(limit)
            kernels.list_neighbors[(-(-plan.frontier // nodes), plan.num_jobs)](
                plan.jobs, counts, self._keys, num_scopes, num_types, max_nodes, hop, self._node, self._copy,
                key, value, LIMIT=limit, SLOTS=slots, B=nodes, num_warps=1,
            )  # fmt: skip
        key, order = torch.sort(key[:list_length], stable=True)
        piece = value[order]
        first = torch.empty(max(list_length, 1), dtype=torch.int64, device=device)
        grid = (max(-(-list_length // _TILE), 1),)
        kernels.mark_candidates[grid](scopes, key, order, list_length, max_nodes, first, T=_TILE)
        number = torch.cumsum(first > 0, 0, dtype=torch.int64)
        candidates = torch.empty(max(plan.num_candidates, 1), dtype=torch.int64, device=device)
        budgets, squares, running, left = (
            torch.empty(max(plan.num_candidates, 1), dtype=torch.float64, device=device) for _ in range(4)
        )
        kernels.add_up[grid](
            scopes, key, piece, first, number, list_length, max_nodes, candidates, budgets, squares, T=_TILE
        )
        kernels.sum_squares[(num_scopes,)](scopes, counts, num_scopes, number, squares, running, T=_LONG_TILE)
        picked = torch.empty(max(plan.num_candidates, 1), dtype=torch.int8, device=device)
        kernels.draw_nodes[(num_scopes,)](
            scopes, counts, self._keys, num_scopes, num_types, hop, self._node, candidates, running, left,
            picked, T=_DRAWS_PER_TILE, LONG=_LONG_TILE,
        )  # fmt: skip
        return candidates, budgets

    def finish(self) -> list[SampledSubgraph]:
        """Return the samples; waits for the nodes, then for the numbers of edges.

        Raises:
            InputError: a request does not fit the graph.
        """
        with on_stream(self._stream):
            state = self._late.wait().numpy()
            if state[-1, 0]:
                for request in self._requests:
                    check_request(self._sampler.graph, self._sampler.spec, request)
            counts = np.vstack([self._num_seeds.ravel(), state[3:-1]])
            num_types, nodes_at, sizes = len(self._types), self._plan.nodes_at.tolist(), counts[-1].tolist()
            samples, copies, added = [], [], np.diff(counts, axis=0, prepend=0)
            for begin in range(0, len(sizes), num_types):
                node, per_hop = {}, {}
                for s, t in enumerate(self._types, begin):
                    node[t], per_hop[t] = self._node.narrow(0, nodes_at[s], sizes[s]), added[:, s].tolist()
                    copies.append(self._copy.narrow(0, nodes_at[s], sizes[s]))
                samples.append(sample_of(node, per_hop))
            self._sampler._inducer.replace_edges(samples, keys=self._keys, copies=copies)
            return samples
