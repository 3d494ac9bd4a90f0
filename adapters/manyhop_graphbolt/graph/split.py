"""Samples of fused topologies, split by type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhop.features import BufferPool, RowRequest, gather
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, NodeType
from manyhop.sampling import SampledSubgraph


class Splitter:
    """Splits samples of one graph by type; type and id (``None``: the position) of each edge are in any memory."""

    def __init__(
        self,
        offsets: Mapping[NodeType, range],
        edge_types: Sequence[EdgeType],
        type_per_edge: Tensor,
        edge_id: Tensor | None,
    ) -> None:
        self._node_types, self._edge_types = list(offsets), list(edge_types)
        self._starts = torch.tensor([own.start for own in offsets.values()], dtype=torch.int64)
        self._kinds, self._ids = type_per_edge, edge_id
        self._tables: tuple[Tensor, Tensor | None] | None = None
        self._empty = BufferPool().empty

    def split(self, sample: SampledSubgraph) -> SampledSubgraph:
        """Split a sample, whose edge ids are positions, by type; on the device of the sample."""
        on_cpu = sample.node[HOMOGENEOUS_NODE].device.type == "cpu"
        parts = self._on_cpu(sample) if on_cpu else self._on_gpu(sample)
        nodes, rows, cols, ids, trees, node_hops, edge_hops = parts
        node_types, edge_types = self._node_types, self._edge_types
        return SampledSubgraph(
            node=dict(zip(node_types, nodes, strict=True)),
            row=dict(zip(edge_types, rows, strict=True)),
            col=dict(zip(edge_types, cols, strict=True)),
            edge_id=dict(zip(edge_types, ids, strict=True)),
            tree=None if trees is None else dict(zip(node_types, trees, strict=True)),
            num_sampled_nodes=dict(zip(node_types, node_hops, strict=True)),
            num_sampled_edges=dict(zip(edge_types, edge_hops, strict=True)),
        )

    def _on_cpu(self, sample: SampledSubgraph) -> tuple[Any, ...]:
        from manyhop_graphbolt.graph.kernels import split_edges, split_nodes

        node, row, col, edge, node_hops, edge_hops = _parts(sample)
        table, ids = self._cpu_tables()
        num_kinds, num_types = len(self._node_types), len(self._edge_types)
        nodes, local = self._empty((len(node),), torch.int64), self._empty((len(node),), torch.int64)
        counts = torch.zeros(len(node_hops), num_kinds, dtype=torch.int64)
        edge_counts = torch.zeros(len(edge_hops), num_types, dtype=torch.int64)
        ends, edge_ends = (torch.tensor(hops, dtype=torch.int64).cumsum(0) for hops in (node_hops, edge_hops))
        split_nodes(
            node.data_ptr(), len(node), self._starts.data_ptr(), num_kinds, ends.data_ptr(), len(ends),
            local.data_ptr(), counts.data_ptr(), nodes.data_ptr(),
        )  # fmt: skip
        both, edge_ids = self._empty((2 * len(edge),), torch.int64), self._empty((len(edge),), torch.int64)
        wide = ids is not None and ids.dtype == torch.int64
        split_edges(
            row.data_ptr(), col.data_ptr(), edge.data_ptr(), len(edge), table.data_ptr(), num_types,
            edge_ends.data_ptr(), len(edge_ends), local.data_ptr(), 0 if ids is None else ids.data_ptr(), wide,
            edge_counts.data_ptr(), both.data_ptr(), edge_ids.data_ptr(),
        )  # fmt: skip
        sizes, edge_sizes = counts.sum(0), edge_counts.sum(0)
        split_ends = [part.view(2, -1) for part in torch.split(both, (2 * edge_sizes).tolist())]
        trees = None
        if sample.tree is not None:
            kinds = torch.bucketize(node, self._starts[1:], right=True)
            trees = [sample.tree[HOMOGENEOUS_NODE][kinds == k] for k in range(num_kinds)]
        return (
            torch.split(nodes, sizes.tolist()),
            [ends[0] for ends in split_ends],
            [ends[1] for ends in split_ends],
            torch.split(edge_ids, edge_sizes.tolist()),
            trees,
            counts.t().tolist(),
            edge_counts.t().tolist(),
        )

    def _cpu_tables(self) -> tuple[Tensor, Tensor | None]:
        """Return types in 2 bytes, and ids in 4 or 8; built on first use."""
        if self._tables is None:
            ids = None if self._ids is None else self._ids.cpu().contiguous()
            if ids is not None and ids.dtype not in (torch.int32, torch.int64):
                ids = ids.long()
            kinds = torch.from_numpy(self._kinds.cpu().numpy().astype(np.uint16))
            self._tables = kinds, ids
        return self._tables

    def _on_gpu(self, sample: SampledSubgraph) -> tuple[Any, ...]:
        """Split by a stable sort. The host waits once, for the number of nodes and edges of each type."""
        node, row, col, edge, node_hops, edge_hops = _parts(sample)
        device, count = node.device, self._kinds.numel()
        sources = [self._kinds] if self._ids is None else [self._kinds, self._ids]
        found = gather([RowRequest(source, edge, name="types and ids of edges", bound=count) for source in sources])
        ids = edge if len(found) == 1 else found[1].to(device, torch.int64)
        starts = self._starts.to(device)
        nodes = _Kinds(torch.searchsorted(starts, node, right=True) - 1, node_hops, len(self._node_types))
        edges = _Kinds(found[0].to(device, torch.int64), edge_hops, len(self._edge_types))
        counts = torch.cat([nodes.counts, edges.counts]).tolist()
        nodes.set_counts(counts[: len(nodes.counts)])
        edges.set_counts(counts[len(nodes.counts) :])
        order = nodes.order
        local = torch.empty_like(node)
        begins = nodes.sizes.cumsum(0) - nodes.sizes
        local[order] = torch.arange(len(node), device=device) - begins[nodes.kind[order]]
        return (
            nodes.split((node - starts[nodes.kind])[order]),
            edges.split(local[row[edges.order]]),
            edges.split(local[col[edges.order]]),
            edges.split(ids[edges.order]),
            None if sample.tree is None else nodes.split(sample.tree[HOMOGENEOUS_NODE][order]),
            nodes.by_hop,
            edges.by_hop,
        )


def _parts(sample: SampledSubgraph) -> tuple[Any, ...]:
    """Return nodes, rows, columns and ids of edges, and the numbers of nodes and edges per hop."""
    of_edges: list[Any] = [sample.row, sample.col, sample.edge_id]
    hops: tuple[Any, Any] = sample.num_sampled_nodes, sample.num_sampled_edges
    edges = [part[HOMOGENEOUS_EDGE] for part in of_edges]
    return sample.node[HOMOGENEOUS_NODE], *edges, hops[0][HOMOGENEOUS_NODE], hops[1][HOMOGENEOUS_EDGE]


class _Kinds:
    """Nodes or edges of multiple types, on a GPU."""

    def __init__(self, kind: Tensor, hops: Sequence[int], num_kinds: int) -> None:
        self.kind, self._num_kinds = kind, num_kinds
        small = torch.uint8 if num_kinds <= 256 else torch.int32
        self.order = torch.sort(kind.to(small), stable=True).indices
        device = kind.device
        runs = torch.tensor(hops, dtype=torch.int64, device=device)
        hop = torch.repeat_interleave(torch.arange(len(hops), device=device), runs, output_size=kind.numel())
        empty = torch.zeros(len(hops) * num_kinds, dtype=torch.int64, device=device)
        self.counts = empty.scatter_add(0, hop * num_kinds + kind, torch.ones_like(kind))
        self.sizes = self.counts.view(-1, num_kinds).sum(0)

    def set_counts(self, counts: list[int]) -> None:
        """Set the numbers in ``counts``, now on the host."""
        self.by_hop = [counts[k :: self._num_kinds] for k in range(self._num_kinds)]
        self._sizes = [sum(hops) for hops in self.by_hop]

    def split(self, values: Tensor) -> Sequence[Tensor]:
        """Split values in the order of types by type."""
        return torch.split(values, self._sizes)
