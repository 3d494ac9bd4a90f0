"""Induced subgraphs on the GPU: all edges among the nodes of batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.errors import CapacityError
from manyhop.graph import Graph, NodeType
from manyhop.sampling.contract import NodeRequest, SampledSubgraph
from manyhop.sampling.gpu.kernels import induced as kernels
from manyhop.sampling.gpu.kernels import tables
from manyhop.sampling.gpu.launch.plan import edge_tables
from manyhop.sampling.gpu.transfer import Readback, upload
from manyhop.system.triton_launch import current_stream, on_stream

Ints = npt.NDArray[np.int64]

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


def sample_of(
    node: dict[NodeType, Tensor], num_sampled_nodes: dict[NodeType, list[int]] | None = None
) -> SampledSubgraph:
    """Return a sample without edges and trees."""
    return SampledSubgraph(
        node=node, row={}, col={}, edge_id={}, tree=None, num_sampled_nodes=num_sampled_nodes, num_sampled_edges=None
    )


def drop_excluded(samples: Sequence[SampledSubgraph], requests: Sequence[NodeRequest]) -> None:
    """Remove the edges that requests exclude from their samples; waits for the numbers of remaining edges."""
    for sample, request in zip(samples, requests, strict=True):
        for t, ids in (request.exclude or {}).items():
            edges = sample.edge_id[t]
            assert edges is not None, "induced edges have ids"
            left = ~torch.isin(edges, ids.to(edges.device))
            sample.row[t], sample.col[t] = sample.edge_index(t)[:, left].unbind()
            sample.edge_id[t] = edges[left]


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
            with on_stream(current_stream(device)):
                self.replace_edges([sample_of(one)])  # compiles its kernels

    def replace_edges(
        self,
        samples: Sequence[SampledSubgraph],
        *,
        keys: Tensor | None = None,
        copies: Sequence[Tensor] | None = None,
    ) -> None:
        """Replace the edges of samples, in place, by all edges among their nodes; waits for their numbers.

        Args:
            samples: samples on the device; those that are disjoint all are.
            keys: with a limit: ``[num_batches, 3] int64`` on the device: seed, epoch, batch.
            copies: with a limit: ``int32``, for all nodes of each type of each batch: which copy of a seed each is.

        Raises:
            CapacityError: nodes and trees of these batches cannot be numbered in 63 bits.
        """
        _Search(self, samples, keys, copies).replace_edges()


class _Search:
    """A search for edges, on the current stream; repeated where more are found than fit."""

    def __init__(
        self,
        inducer: Inducer,
        samples: Sequence[SampledSubgraph],
        keys: Tensor | None,
        copies: Sequence[Tensor] | None,
    ) -> None:
        self._inducer, self._samples, self._num_batches, self._batches = inducer, samples, len(samples), keys
        graph, device = inducer.graph, inducer.device
        types = graph.node_types
        sizes = np.array([sample.node[t].numel() for sample in samples for t in types], np.int64)
        scopes = np.concatenate([[0], np.cumsum(sizes)])
        segments, columns = self._tables(scopes)
        self._num_nodes, self._num_columns = int(scopes[-1]), int(columns[-1])
        if self._num_columns == 0:
            return
        trees = [sample.tree[t] for sample in samples if sample.tree is not None for t in types]
        # At least one tree for every seed: no more than there are nodes.
        num_trees = int(sizes.reshape(-1, len(types)).sum(1).max()) if trees else 1
        max_nodes = max(graph.num_nodes.values())
        if sizes.size * num_trees * max_nodes >= 2**63:
            raise CapacityError(
                f"{sizes.size} node types of batches with {num_trees} trees and ids below {max_nodes} cannot be "
                "numbered in 63 bits. Use smaller batches."
            )
        node = torch.cat([sample.node[t] for sample in samples for t in types])
        if copies is not None:
            self._node, self._copy = node, torch.cat(list(copies))
        tree = torch.cat(trees) if trees else node
        scope_table, self._segments, column_table = upload([scopes, segments, columns], device)
        numbers = {"num_trees": num_trees, "max_nodes": max_nodes, "DISJOINT": bool(trees), "T": _SMALL_TILE}

        self._mask = (1 << (2 * self._num_nodes - 1).bit_length()) - 1
        num_slots = self._mask + 1 + kernels.SPARE.value
        self._keys = torch.full((num_slots,), kernels.EMPTY.value, dtype=torch.int64, device=device)
        self._local = torch.full((num_slots,), 2**31 - 1, dtype=torch.int32, device=device)
        kernels.enter_nodes[(-(-self._num_nodes // _SMALL_TILE),)](
            scope_table, node, tree, self._num_nodes, sizes.size, keys=self._keys, local=self._local,
            mask=self._mask, **numbers,
        )  # fmt: skip
        degree, *about = (torch.empty(self._num_columns, dtype=torch.int64, device=device) for _ in range(4))
        kernels.measure_columns[(-(-self._num_columns // _SMALL_TILE),)](
            self._segments, column_table, node, tree, self._num_columns, len(segments), degree=degree,
            begin=about[0], base=about[1], dst=about[2], **numbers,
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

    def replace_edges(self) -> None:
        """Wait for the counts, and give the samples their edges."""
        if self._num_columns == 0:
            self._allocate([0] * (self._num_batches * len(self._inducer.tables)))
            return
        while True:
            num_entries, num_edges, *counts = self._late.wait().tolist()
            num_tiles = -(-num_entries // _TILE) if self._inducer.limit is None else self._tile_capacity
            if num_tiles <= self._tile_capacity and num_edges <= self._edge_capacity:
                break
            # More than ever before: search again, with a capacity for a quarter more.
            self._inducer.tile_capacity = max(self._inducer.tile_capacity, num_tiles + num_tiles // 4)
            self._inducer.edge_capacity = max(self._inducer.edge_capacity, num_edges + num_edges // 4)
            self._find()
        outputs = self._allocate(counts)
        if num_tiles:
            table = upload([outputs], self._inducer.device)[0]
            kernels.place_edges[(min(num_tiles, self._inducer.programs),)](
                table, self._tile_first, self._tile_end, num_tiles, *self._found, T=self._tile
            )

    def _allocate(self, counts: Sequence[int]) -> Ints:
        """Allocate the edges, one tensor per batch. Return the table of the output addresses of segments."""
        types, num_batches = self._inducer.graph.edge_types, self._num_batches
        first = list(accumulate(counts, initial=0))
        outputs: list[tuple[int, ...]] = [()] * len(counts)
        for b, sample in enumerate(self._samples):
            if self._inducer.limit is None:
                sample.num_sampled_nodes = sample.num_sampled_edges = None
            sizes = counts[b::num_batches]
            memory = torch.empty(3 * sum(sizes), dtype=torch.int64, device=self._inducer.device)
            parts, address = torch.split(memory, [n for n in sizes for _ in range(3)]), memory.data_ptr()
            for e, (t, n) in enumerate(zip(types, sizes, strict=True)):
                sample.row[t], sample.col[t], sample.edge_id[t] = parts[3 * e : 3 * e + 3]
                s = e * num_batches + b
                outputs[s] = first[s], address, address + 8 * n, address + 16 * n
                address += 24 * n
        return np.array(outputs, np.int64)
