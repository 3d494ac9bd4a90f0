"""Induced subgraphs on the GPU: all edges among the nodes of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.errors import CapacityError
from manyhop.graph import EdgeType, Graph, NodeType
from manyhop.sampling.contract import NodeRequest, SampledSubgraph
from manyhop.sampling.gpu.kernels import induced as kernels
from manyhop.sampling.gpu.kernels import tables
from manyhop.sampling.gpu.launch.plan import edge_tables
from manyhop.sampling.gpu.transfer import Readback, current_stream, run_on, upload

Ints = npt.NDArray[np.int64]
Edges = dict[EdgeType, Tensor]
ByBatch = Sequence[Mapping[NodeType, Tensor]]

_COLUMNS = [column.value for column in (tables.COLPTR, tables.ROW, tables.ROW_WIDE, tables.PERM, tables.PERM_WIDE)]
_TILE = 512
_SMALL_TILE = 256
_PROGRAMS_PER_PROCESSOR = 8


def tile_of(limit: int) -> tuple[int, int]:
    """Return how many slots a column has in kernels that choose up to ``limit`` entries, and how many columns a tile.

    Such kernels have one warp: its lanes exchange the slots of a column without a barrier.
    """
    slots = max(16, 1 << (limit - 1).bit_length())
    return slots, max(1, _TILE // slots)


def drop_excluded(samples: list[SampledSubgraph], requests: Sequence[NodeRequest]) -> list[SampledSubgraph]:
    """Remove the edges that requests exclude from their samples; waits for the numbers of remaining edges."""
    return [
        sample if request.exclude is None else _without(sample, request.exclude)
        for sample, request in zip(samples, requests, strict=True)
    ]


def _without(sample: SampledSubgraph, exclude: Mapping[EdgeType, Tensor]) -> SampledSubgraph:
    row, col, edge_id = dict(sample.row), dict(sample.col), dict(sample.edge_id)
    for t, ids in exclude.items():
        edges = sample.edge_id[t]
        assert edges is not None, "induced edges have ids"
        left = ~torch.isin(edges, ids.to(edges.device))
        row[t], col[t] = sample.edge_index(t)[:, left].unbind()
        edge_id[t] = edges[left]
    return replace(sample, row=row, col=col, edge_id=edge_id)


@dataclass(frozen=True)
class InducedEdges:
    """The edges of one batch; the fields are those of :class:`manyhop.sampling.SampledSubgraph`."""

    row: Edges
    col: Edges
    edge_id: dict[EdgeType, Tensor | None]


class Inducer:
    """Finds all edges among the nodes of batches; safe to call from multiple threads.

    Args:
        graph: the topology, where kernels can read it.
        device: where nodes and results reside.
        limit: cut longer columns to a choice of this many entries, as HGT sampling does.

    Raises:
        GraphError: the device cannot read the graph's memory.
    """

    def __init__(self, graph: Graph, device: torch.device, *, limit: int | None = None) -> None:
        self.graph = graph
        self.limit = limit
        self.device = device
        self.programs = 2
        if device.type == "cuda":
            processors = torch.cuda.get_device_properties(device).multi_processor_count
            self.programs = _PROGRAMS_PER_PROCESSOR * processors
        self.tile_capacity = 1 << 10
        self.edge_capacity = 1 << 16
        types = {t: i for i, t in enumerate(graph.node_types)}
        self.ends = [(types[src], types[dst]) for src, _, dst in graph.edge_types]
        self.has_edges = [c.num_edges > 0 for c in graph.csc.values()]
        self.tables = edge_tables(graph, device)[:, _COLUMNS]
        if device.type == "cuda" and limit is None:
            one = {t: torch.zeros(min(n, 1), dtype=torch.int64, device=device) for t, n in graph.num_nodes.items()}
            self.begin([one]).finish()  # compiles its kernels

    def begin(
        self,
        nodes: ByBatch,
        trees: ByBatch | None = None,
        *,
        keys: Tensor | None = None,
        copies: ByBatch | None = None,
    ) -> PendingInduced:
        """Enqueue the search on the current stream.

        Args:
            nodes: for each batch: node type -> ``[num_nodes] int64`` node ids, copies allowed, on the device.
            trees: the tree of each node, for disjoint batches.
            keys: with a limit: ``[num_batches, 3] int64`` on the device: seed, epoch, batch.
            copies: with a limit: as ``nodes``, ``int32``: which copy of a seed each node is.

        Raises:
            CapacityError: nodes and trees of these batches cannot be numbered in 63 bits.
        """
        return PendingInduced(self, nodes, trees, keys, copies)

    def replace_edges(self, samples: Sequence[SampledSubgraph]) -> list[SampledSubgraph]:
        """Replace the edges of samples by all edges among their nodes; waits for their numbers."""
        trees = [s.tree for s in samples if s.tree is not None]
        found = self.begin([s.node for s in samples], trees or None).finish()
        return [
            replace(s, row=e.row, col=e.col, edge_id=e.edge_id, num_sampled_nodes=None, num_sampled_edges=None)
            for s, e in zip(samples, found, strict=True)
        ]


class PendingInduced:
    """Induced edges in flight; created by :meth:`Inducer.begin`."""

    def __init__(
        self,
        inducer: Inducer,
        nodes: ByBatch,
        trees: ByBatch | None,
        keys: Tensor | None,
        copies: ByBatch | None,
    ) -> None:
        self._inducer, self._batches, self._num_batches = inducer, keys, len(nodes)
        self._stream = current_stream(inducer.device)
        run_on(self._stream, self._begin, nodes, trees, copies)

    def _begin(self, nodes: ByBatch, trees: ByBatch | None, copies: ByBatch | None) -> None:
        inducer = self._inducer
        graph, device = inducer.graph, inducer.device
        types = graph.node_types
        sizes = np.array([batch[t].numel() for batch in nodes for t in types], np.int64)
        scopes = np.concatenate([[0], np.cumsum(sizes)])
        segments, columns = self._tables(scopes)
        self._num_nodes, self._num_columns = int(scopes[-1]), int(columns[-1])
        if self._num_columns == 0:
            return
        # At least one tree for every seed: no more than there are nodes.
        num_trees = 1 if trees is None else int(sizes.reshape(-1, len(types)).sum(1).max())
        max_nodes = max(graph.num_nodes.values())
        if sizes.size * num_trees * max_nodes >= 2**63:
            raise CapacityError(
                f"{sizes.size} node types of batches with {num_trees} trees and ids below {max_nodes} cannot be "
                "numbered in 63 bits. Use smaller batches."
            )
        node = torch.cat([batch[t] for batch in nodes for t in types])
        if copies is not None:
            self._node, self._copy = node, torch.cat([batch[t] for batch in copies for t in types])
        tree = node if trees is None else torch.cat([batch[t] for batch in trees for t in types])
        scope_table, self._segments, column_table = upload([scopes, segments, columns], device)
        numbers = {"num_trees": num_trees, "max_nodes": max_nodes}
        disjoint = trees is not None

        self._mask = (1 << (2 * self._num_nodes - 1).bit_length()) - 1
        num_slots = self._mask + 1 + kernels.SPARE.value
        self._keys = torch.full((num_slots,), kernels.EMPTY.value, dtype=torch.int64, device=device)
        self._local = torch.full((num_slots,), 2**31 - 1, dtype=torch.int32, device=device)
        kernels.enter_nodes[(-(-self._num_nodes // _SMALL_TILE),)](
            scope_table, node, tree, self._num_nodes, sizes.size, keys=self._keys, local=self._local,
            mask=self._mask, DISJOINT=disjoint, T=_SMALL_TILE, **numbers,
        )  # fmt: skip
        degree, *about = (torch.empty(self._num_columns, dtype=torch.int64, device=device) for _ in range(4))
        kernels.measure_columns[(-(-self._num_columns // _SMALL_TILE),)](
            self._segments, column_table, node, tree, self._num_columns, len(segments), degree=degree,
            begin=about[0], base=about[1], dst=about[2], DISJOINT=disjoint, T=_SMALL_TILE, **numbers,
        )  # fmt: skip
        self._columns = degree if inducer.limit is not None else torch.cumsum(degree, 0), *about
        self._find()

    def _tables(self, scopes: Ints) -> tuple[Ints, Ints]:
        """Return the table of segments, and the offsets of their columns."""
        inducer, num_types = self._inducer, len(self._inducer.graph.node_types)
        begins = scopes[:-1].reshape(-1, num_types)
        sizes = np.diff(scopes).reshape(-1, num_types)
        first_scope = np.arange(self._num_batches) * num_types
        table = np.empty((len(inducer.tables), self._num_batches, kernels.SEGMENT_COLUMNS.value), np.int64)
        lengths = np.zeros((len(inducer.tables), self._num_batches), np.int64)
        for e, ((src, dst), has_edges) in enumerate(zip(inducer.ends, inducer.has_edges, strict=True)):
            table[e, :, 0] = begins[:, dst]
            table[e, :, 1] = first_scope + src
            table[e, :, 2:] = inducer.tables[e]
            if has_edges:  # else there may be no table at all
                lengths[e] = sizes[:, dst]
        return table.reshape(-1, table.shape[-1]), np.concatenate([[0], np.cumsum(lengths)])

    def _find(self) -> None:
        """Enqueue the search for edges, as many as fit."""
        inducer, device = self._inducer, self._inducer.device
        self._tile_capacity, self._edge_capacity = inducer.tile_capacity, inducer.edge_capacity
        self._tile, slots, columns = _TILE, 0, 0
        if inducer.limit is not None:  # then tiles have whole columns
            slots, columns = tile_of(inducer.limit)
            self._tile = slots * columns
            self._tile_capacity = -(-self._num_columns // columns)
        self._tile_first = torch.empty(self._tile_capacity, dtype=torch.int64, device=device)
        count = torch.empty(self._tile_capacity, dtype=torch.int32, device=device)
        self._found = (
            torch.empty(self._edge_capacity, dtype=torch.int32, device=device),
            torch.empty(self._edge_capacity, dtype=torch.int64, device=device),
            torch.empty(self._edge_capacity, dtype=torch.int64, device=device),
        )
        num_segments = self._num_batches * len(inducer.tables)
        state = torch.zeros(kernels.STATE_EDGES.value + num_segments, dtype=torch.int64, device=device)
        if inducer.limit is not None:
            kernels.find_chosen[(self._tile_capacity,)](
                self._segments, *self._columns, self._num_columns, self._num_batches, self._node, self._copy,
                self._batches, self._keys, self._local, self._mask, self._tile_first, count, *self._found,
                self._edge_capacity, state, LIMIT=inducer.limit, SLOTS=slots, B=columns, num_warps=1,
            )  # fmt: skip
        else:
            kernels.find_edges[(inducer.programs,)](
                self._segments, *self._columns, self._num_columns, self._keys, self._local, self._mask,
                self._tile_first, count, self._tile_capacity, *self._found, self._edge_capacity, state, T=_TILE,
            )  # fmt: skip
        self._tile_end = torch.cumsum(count, 0)
        self._late = Readback(state)

    def finish(self) -> list[InducedEdges]:
        """Wait for the counts, and return the edges; their tensors are written on the stream of ``begin``."""
        return run_on(self._stream, self._finish)

    def _finish(self) -> list[InducedEdges]:
        if self._num_columns == 0:
            return self._split([0] * (self._num_batches * len(self._inducer.tables)))[0]
        while True:
            num_entries, num_edges, *counts = self._late.wait().tolist()
            num_tiles = -(-num_entries // _TILE) if self._inducer.limit is None else self._tile_capacity
            if num_tiles <= self._tile_capacity and num_edges <= self._edge_capacity:
                break
            # More than ever before: search again, with a capacity for a quarter more.
            self._inducer.tile_capacity = max(self._inducer.tile_capacity, num_tiles + num_tiles // 4)
            self._inducer.edge_capacity = max(self._inducer.edge_capacity, num_edges + num_edges // 4)
            self._find()
        batches, outputs = self._split(counts)
        if num_tiles:
            table = upload([outputs], self._inducer.device)[0]
            kernels.place_edges[(min(num_tiles, self._inducer.programs),)](
                table, self._tile_first, self._tile_end, num_tiles, *self._found, T=self._tile
            )
        return batches

    def _split(self, counts: Sequence[int]) -> tuple[list[InducedEdges], Ints]:
        """Allocate the edges, one tensor per batch. Return them, and the table of the output addresses of segments."""
        types, num_batches = self._inducer.graph.edge_types, self._num_batches
        first = list(accumulate(counts, initial=0))
        outputs: list[tuple[int, ...]] = [()] * len(counts)
        batches = []
        for b in range(num_batches):
            sizes = counts[b::num_batches]
            memory = torch.empty(3 * sum(sizes), dtype=torch.int64, device=self._inducer.device)
            parts = torch.split(memory, [n for n in sizes for _ in range(3)])
            found, address = InducedEdges({}, {}, {}), memory.data_ptr()
            for e, (edge_type, n) in enumerate(zip(types, sizes, strict=True)):
                found.row[edge_type], found.col[edge_type], found.edge_id[edge_type] = parts[3 * e : 3 * e + 3]
                s = e * num_batches + b
                outputs[s] = first[s], address, address + 8 * n, address + 16 * n
                address += 24 * n
            batches.append(found)
        return batches, np.array(outputs, np.int64)


def add_reverses(samples: Sequence[SampledSubgraph], reverse: Mapping[EdgeType, EdgeType]) -> list[SampledSubgraph]:
    """Apply ``with_reverses`` to each sample; waits once, for the numbers of edges.

    Args:
        samples: samples on one device.
        reverse: edge type -> the edge type of its reverses.
    """
    parts = [(b, t, r) for b in range(len(samples)) for t, r in reverse.items()]
    results = [(dict(s.row), dict(s.col), dict(s.edge_id)) for s in samples]
    sizes = [samples[b].row[t].numel() + samples[b].row[r].numel() for b, t, r in parts]
    if sum(sizes):
        device = samples[0].row[parts[0][1]].device
        row = torch.cat([x for b, t, r in parts for x in (samples[b].row[t], samples[b].col[r])])
        col = torch.cat([x for b, t, r in parts for x in (samples[b].col[t], samples[b].row[r])])
        # A key encodes part, column and row: sorting keeps the order of the parts.
        num_src = np.array([max(samples[b].node[t[0]].numel(), 1) for b, t, _ in parts], np.int64)
        num_pairs = num_src * np.array([samples[b].node[t[2]].numel() for b, t, _ in parts], np.int64)
        lengths = np.array(sizes, np.int64)
        length, width, base, last = upload(
            [lengths, num_src, np.cumsum(num_pairs) - num_pairs, np.maximum(np.cumsum(lengths) - 1, 0)], device
        )
        part = torch.repeat_interleave(torch.arange(len(parts), device=device), length, output_size=sum(sizes))
        key, order = torch.sort(base[part] + col * width[part] + row, stable=True)
        first = torch.ones_like(key, dtype=torch.bool)
        torch.ne(key[1:], key[:-1], out=first[1:])
        number = torch.cumsum(first, 0)
        late = Readback(number[last])
        kept = torch.empty(sum(sizes) + 1, dtype=torch.int64, device=device)
        kept[torch.where(first, number - 1, sum(sizes))] = order  # duplicates are written to the extra last element
        ends = late.wait().tolist()
        kept = kept[: ends[-1]]
        row, col = row[kept], col[kept]
        starts = np.cumsum(lengths) - lengths
        begin = 0
        for i, (b, t, r) in enumerate(parts):
            end = ends[i] if sizes[i] else begin
            pair = torch.stack([row[begin:end], col[begin:end]])
            results[b][0][t], results[b][1][t] = pair.unbind(0)
            ids = samples[b].edge_id[t]
            if r == t and ids is not None:
                results[b][2][t] = ids[(kept[begin:end] - int(starts[i])) % max(ids.numel(), 1)]
            else:
                results[b][2][t] = None
            begin = end
    else:
        for b, t, r in parts:
            results[b][2][t] = samples[b].edge_id[t] if r == t else None
    return [
        replace(s, row=row, col=col, edge_id=edge_id, num_sampled_nodes=None, num_sampled_edges=None)
        for s, (row, col, edge_id) in zip(samples, results, strict=True)
    ]
