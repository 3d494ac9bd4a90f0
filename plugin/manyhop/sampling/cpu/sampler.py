"""The CPU backend of neighbour sampling: equal to the reference bit for bit, compiled by numba when first used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from manyhop.graph import EdgeType, Graph, NodeType
from manyhop.sampling.check import check_request, check_spec
from manyhop.sampling.contract import HGTSpec, NeighborSpec, NodeRequest, Pending, SampledSubgraph, add_reverses
from manyhop.sampling.cpu import tables as c
from manyhop.sampling.cpu.tables import pages_edges
from manyhop.sampling.cpu.workspace import (
    Empty,
    Table,
    Workspace,
    allocate_edges,
    describe_edges,
    empty,
    induced_edges,
    kept_edges,
    node_columns,
    nodes_per_hop,
)
from manyhop.system.threads import in_forked_children

_HUGE_FANOUT = 1 << 16
_BYTES_PER_EDGE = 24  # of a sample
Outputs: TypeAlias = tuple[list[tuple[Tensor, Tensor]], list[dict[NodeType, Tensor]]]


class HostSampler:
    """A graph as kernels see it, and the memory of each thread: the frame of samplers on the CPU."""

    spec: NeighborSpec | HGTSpec

    def __init__(self, graph: Graph, spec: NeighborSpec | HGTSpec, *, empty: Empty = empty) -> None:
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
        graph, spec = self.graph, self.spec
        self._edges = describe_edges(graph, temporal=isinstance(spec, NeighborSpec) and spec.temporal is not None)
        self._edges["pages"] = pages_edges(graph)
        self._node_types = graph.node_types
        self._num_nodes = [graph.num_nodes[t] for t in graph.node_types]
        self._local = threading.local()

    def _seeds(self, ws: Workspace, request: NodeRequest) -> tuple[Table, list[Tensor]]:
        """Reserve memory for the seeds. Return their table for kernels, and tensors that must outlive the batch."""
        rows, keep = [], []
        for node_type, ids in request.seeds.items():
            t = self._node_types.index(node_type)
            keep.append(_readable(ids))
            rows.append((t, keep[-1].data_ptr(), ids.numel()))
            ws.reserve_seeds(t, ids.numel())
        for column, times in (("time_max", request.time_max), ("time_min", request.time_min)):
            ws.mode[column][0] = 0
            if times:
                each = [_readable(times[t]) for t in request.seeds]
                keep.append(each[0] if len(each) == 1 else torch.cat(each))
                ws.mode[column][0] = keep[-1].data_ptr()
        return np.array(rows, np.int64).reshape(-1, 3), keep


def _readable(ids: Tensor) -> Tensor:
    """Return a request's array where and as kernels read it by its address."""
    return ids.cpu().resolve_neg().contiguous()


class CPUSampler(HostSampler):
    """Samples neighbours on the CPU; safe to call from multiple threads, which run in parallel.

    Args:
        graph: the topology, in CPU memory.
        spec: how to sample; identical for all requests.
        empty: makes the tensors of the results; pipelines pass recycled memory.

    Raises:
        InputError: the spec does not fit the graph, or a request does not fit the spec.
        GraphError: the graph is not in CPU memory, or is not laid out as in :class:`manyhop.graph.CSC`.
        CapacityError: a batch has 2^30 or more nodes of a type, or does not fit in memory.
    """

    spec: NeighborSpec

    def _prepare(self) -> None:
        from manyhop.sampling.cpu.kernels import hop
        from manyhop.system.numba_kernels import prepare

        self._kernels = hop
        self._sample_plain, self._sample_any = self._batch_kernels()
        prepare(self._sample_plain, hop.rehash_type, hop.copy_arrays)
        super()._prepare()
        graph, spec = self.graph, self.spec
        self._types = [(t, graph.node_types.index(t[0]), graph.node_types.index(t[2])) for t in graph.edge_types]
        fanouts = [spec.fanouts[t] for t in graph.edge_types]
        self._num_hops = len(fanouts[0]) if fanouts else 0
        self._columns = ("node", "tree") if spec.disjoint else ("node",)
        self._fanouts = np.array(fanouts, np.int64).reshape(len(fanouts), self._num_hops).T.copy()
        if not spec.replace:
            self._bound_fanouts()

    def _batch_kernels(self) -> tuple[Any, Any]:
        """Return the smallest kernel that samples a batch, and that for requests which exclude edges."""
        spec, kernels = self.spec, self._kernels
        plain = not spec.weighted and spec.temporal is None and not spec.disjoint
        return (kernels.sample_plain_batch if plain else kernels.sample_batch), kernels.sample_batch

    def _bound_fanouts(self) -> None:
        """Limit fanouts, which determine memory, to the largest degree: users pass 10^9 for all neighbours."""
        for i, edge_type in enumerate(self.graph.edge_types):
            if self._fanouts[:, i].max(initial=0) > _HUGE_FANOUT:
                most = int(np.diff(self.graph.csc[edge_type].colptr.numpy()).max(initial=_HUGE_FANOUT))
                self._fanouts[:, i] = self._fanouts[:, i].clip(max=most)

    def _workspace(self) -> Workspace:
        ws: Workspace | None = getattr(self._local, "workspace", None)
        if ws is None:
            spec = self.spec
            largest = 0 if spec.replace else int(self._fanouts.max(initial=0))
            ws = Workspace(self._num_nodes, len(self._types), spec.disjoint, largest, self._kernels)
            ws.mode["replace"][0] = spec.replace
            ws.mode["weighted"][0] = spec.weighted
            ws.mode["temporal"][0] = {None: 0, "uniform": 1, "last": 2}[spec.temporal]
            ws.mode["disjoint"][0] = spec.disjoint
            ws.mode["expand_all"][0] = spec.expand == "all"
            self._local.workspace = ws
        return ws

    def sample(self, request: NodeRequest) -> SampledSubgraph:
        """Sample around ``request.seeds``."""
        check_request(self.graph, self.spec, request, in_range=False)
        ws = self._workspace()
        ws.begin(request.key)
        seeds, keep = self._seeds(ws, request)
        keep += self._exclude(ws, request)
        counts = np.empty((self._num_hops + 1, len(self._num_nodes) + len(self._types)), np.int64)
        ws.mode["hop"][0] = -1
        outputs: Outputs = [], []
        tables = (self._edges, *ws.tables, self._fanouts, seeds, ws.key, counts)
        # Two calls, once the workspace is large enough: threads compete for the GIL after each.
        sample = self._sample_plain if request.exclude is None else self._sample_any
        while (state := sample(*tables)) != c.DONE:
            if state == c.BAD_SEEDS:
                check_request(self.graph, self.spec, request)
            elif state == c.NEEDS_FRONTIER:
                num_nodes = ws.nodes["count"].tolist()
                for i, (_, _, dst) in enumerate(self._types):
                    ws.reserve_frontier(i, num_nodes[dst])
            elif state == c.NEEDS_PICKS:
                self._pick_ahead(ws, request)
            elif state == c.NEEDS_ROOM:
                self._reserve(ws)
            else:
                outputs = self._allocate(ws)
        del keep
        return self._result(ws, outputs, counts.tolist())

    def _exclude(self, ws: Workspace, request: NodeRequest) -> list[Tensor]:
        """Pass the excluded edges to the kernels. The number of edges is known at the end of the batch only."""
        ahead = ws.mode["picked_ahead"][0] > 0
        ws.mode["keep_all"][0] = self.spec.subgraph == "induced" or (request.exclude is not None and not ahead)
        keep = []
        for i, (edge_type, _, _) in enumerate(self._types):
            ids = None if request.exclude is None else request.exclude.get(edge_type)
            if ids is not None:
                keep.append(_readable(ids))
            if ids is not None or ws.found["num_excluded"][i] > 0:
                ws.exclude(i, None if ids is None else keep[-1])
        return keep

    def _pick_ahead(self, ws: Workspace, request: NodeRequest) -> None:
        raise NotImplementedError

    def _reserve(self, ws: Workspace) -> None:
        """Reserve memory for nodes and edges that the measured hop can add, and for its chunks."""
        totals = ws.found["total"].tolist()
        ws.expect(_BYTES_PER_EDGE * sum(totals))
        for t, bound in enumerate(self._most_nodes(ws, totals)):
            ws.reserve_nodes(t, bound)
        ws.reserve_chunk(int(ws.found["most"].max(initial=0)))
        if ws.mode["keep_all"][0] or ws.mode["hop"][0] < self._num_hops - 1:
            for i, (n, done) in enumerate(zip(totals, ws.found["num_done"].tolist(), strict=True)):
                ws.reserve_edges(i, done + n, done)

    def _most_nodes(self, ws: Workspace, totals: list[int]) -> list[int]:
        """Return how many nodes of each type the batch has at most after a hop with ``totals`` edges per type."""
        bounds: list[int] = ws.nodes["count"].tolist()
        for n, (_, src, _) in zip(totals, self._types, strict=True):
            bounds[src] += n
        if not self.spec.disjoint:
            limits = zip(bounds, self._num_nodes, ws.nodes["num_seeds"].tolist(), strict=True)
            bounds = [min(bound, n + num_seeds) for bound, n, num_seeds in limits]
        return bounds

    def _allocate(self, ws: Workspace) -> Outputs:
        """Allocate the tensors of all edges, ``([2, n], [n])`` per type, and of all nodes, for the kernel."""
        totals = ws.found["total"].tolist()
        counts = [done + n for done, n in zip(ws.found["num_done"].tolist(), totals, strict=True)]
        edges, addresses = allocate_edges(counts, self._empty)
        for i, out in enumerate(addresses):
            ws.found["out_row"][i], ws.found["out_col"][i], ws.found["out_id"][i] = out
        room = [n + 1 for n in self._most_nodes(ws, totals)]  # kernels write one beyond the last
        return edges, node_columns(ws, self._node_types, self._columns, self._empty, room)

    def _result(self, ws: Workspace, outputs: Outputs, counts: list[list[int]]) -> SampledSubgraph:
        spec, num_types = self.spec, len(self._num_nodes)
        edges, nodes = outputs
        if spec.subgraph == "induced":
            edges = induced_edges(ws, self._edges, self._empty)
        elif ws.mode["keep_all"][0] or self._num_hops == 0:
            edges = kept_edges(ws, self._empty)
        for column in nodes:
            for tensor, n in zip(column.values(), counts[-1], strict=False):
                tensor.resize_(n)
        node, *tree = nodes or node_columns(ws, self._node_types, self._columns, self._empty)
        row, col = {}, {}
        edge_id: dict[EdgeType, Tensor | None] = {}
        for (edge_type, _, _), (pair, ids) in zip(self._types, edges, strict=True):
            row[edge_type], col[edge_type] = pair.unbind(0)
            edge_id[edge_type] = ids
        nodes_after, edges_per_hop = None, None
        if spec.subgraph == "directional":
            nodes_after = nodes_per_hop(self._node_types, counts)
            edges_per_hop = {t: [n[i] for n in counts[1:]] for i, (t, _, _) in enumerate(self._types, num_types)}
        sample = SampledSubgraph(
            node=node,
            row=row,
            col=col,
            edge_id=edge_id,
            tree=tree[0] if spec.disjoint else None,
            num_sampled_nodes=nodes_after,
            num_sampled_edges=edges_per_hop,
        )
        return sample if spec.reverse is None else add_reverses([sample], spec.reverse)[0]


class HostEngine:
    """An engine over tables in CPU memory, one batch after the other.

    Samplers hold the addresses of tables: one is made when it is first needed, and again when the tables have moved.

    Args:
        graph: the topology, in CPU memory.
        make: makes the sampler.

    Raises:
        GraphError: the graph is not in CPU memory, or not laid out as in :class:`manyhop.graph.CSC`.
    """

    collective = False

    def __init__(self, graph: Graph, make: Callable[[], Any]) -> None:
        self._graph, self._make = graph, make
        self._tables = self._find_tables() if graph.is_made else None
        self._made: tuple[list[int], Any] | None = None  # in one piece: other threads read it

    def _find_tables(self) -> list[Tensor]:
        describe_edges(self._graph)
        return self._graph.tables()

    def prepare(self) -> Any:
        """Return the sampler for the tables where they are now; load or compile its kernels, allocate its memory."""
        if self._tables is None:
            self._tables = self._find_tables()
        addresses = [t.data_ptr() for t in self._tables]
        made = self._made
        if made is None or made[0] != addresses:
            with _making:
                made = self._made
                if made is None or made[0] != addresses:
                    made = self._made = addresses, self._make()
        return made[1]

    def sample(self, request: NodeRequest) -> SampledSubgraph:
        """Sample around ``request.seeds``."""
        sample: SampledSubgraph = self.prepare().sample(request)
        return sample

    def begin(self, requests: Sequence[NodeRequest]) -> Pending:
        """Store the batches; they are sampled when they are requested."""
        return _Deferred(self, requests)


class _Deferred:
    """Batches that are sampled when they are requested."""

    def __init__(self, engine: HostEngine, requests: Sequence[NodeRequest]) -> None:
        self._engine, self._requests = engine, requests

    def finish(self) -> list[SampledSubgraph]:
        return [self._engine.sample(request) for request in self._requests]


_making = threading.Lock()


def _renew_lock() -> None:
    """Replace a lock that a thread held which does not exist in a forked process."""
    global _making
    _making = threading.Lock()


in_forked_children(_renew_lock)
