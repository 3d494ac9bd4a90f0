"""The samples of a launch: the memory that they share, and its division once their sizes are known."""

from __future__ import annotations

from collections.abc import Sequence
from operator import sub
from typing import NamedTuple

import torch
from torch import Tensor

from manyhop.graph import EdgeType, NodeType
from manyhop.sampling.contract import SampledSubgraph
from manyhop.sampling.gpu.kernels.hops.nodes import SHARING
from manyhop.sampling.gpu.launch.plan import Ints, Plan

_SHARING = SHARING.value


class LaunchReport(NamedTuple):
    """Counts and failures of a launch, read from the memory that kernels report to."""

    nodes: list[list[int]]
    """``[num_type_ranges][num_hops + 1]``: seeds, then the nodes that each hop added."""
    edges: list[list[int]]
    """``[num_segments][num_hops]``: edges that each hop added."""
    num_nodes: list[int]
    """``[num_type_ranges]``: all nodes."""
    num_edges: list[int]
    """``[num_segments]``: all edges."""
    failed: list[int]
    """``[FAILED_COLUMNS]``: nonzero for each kind of failure that occurred."""

    @classmethod
    def read(cls, nodes: Ints, edges: Ints, failed: Ints) -> LaunchReport:
        """Build a report from the numbers after each hop, ``[num_hops + 1, ..]``."""
        if nodes.shape[1] == edges.shape[1] == 1:  # a batch alone: numpy is slower than Python for single numbers
            (of_nodes,), (of_edges,) = nodes.T.tolist(), edges.T.tolist()
            new = [of_nodes[0], *map(sub, of_nodes[1:], of_nodes)]
            return cls([new], [[*map(sub, of_edges[1:], of_edges)]], of_nodes[-1:], of_edges[-1:], failed.tolist())
        added = nodes.copy()
        added[1:] -= nodes[:-1]
        return cls(
            added.T.tolist(),
            (edges[1:] - edges[:-1]).T.tolist(),
            nodes[-1].tolist(),
            edges[-1].tolist(),
            failed.tolist(),
        )


class Layout:
    """Layout of samples in memory: allocations that multiple batches share, batch by batch.

    A batch has its segments (row, column and edge id), then its type ranges (node; tree if disjoint). An
    allocation may be larger than its samples; unused memory is at its end.

    Args:
        plan: the graph and the spec.
        segment_of: ``[num_batches][num_edge_types]``: the segments of each batch.
        num_batches: largest number of batches of a launch.
    """

    def __init__(self, plan: Plan, segment_of: list[list[int]], num_batches: int) -> None:
        self.per_node = 2 if plan.spec.disjoint else 1
        self.num_edge_types, self.num_types = len(plan.edge_types), len(plan.types)
        self.types = list(plan.types)
        self.segments = list(zip(plan.edge_types, segment_of[0] if segment_of else [], strict=True))
        self._all = parts_of(num_batches)

    def parts(self, num_batches: int) -> list[range]:
        """Return the batches of each allocation."""
        return self._all if num_batches == self._all[-1].stop else parts_of(num_batches)

    def allocation_sizes(self, edges: Sequence[int], nodes: Sequence[int], num_batches: int) -> list[int]:
        """Return the size of each allocation, from the edges of each segment and the nodes of each type range."""
        e, q = self.num_edge_types, self.num_types
        return [
            3 * sum(edges[p.start * e : p.stop * e]) + self.per_node * sum(nodes[p.start * q : p.stop * q])
            for p in self.parts(num_batches)
        ]

    def samples(self, memory: Tensor, batches: range, report: LaunchReport) -> list[SampledSubgraph]:
        """Return the samples of batches, which own their allocation."""
        e, q, per_node = self.num_edge_types, self.num_types, self.per_node
        sizes: list[int] = []
        for b in batches:
            for n in report.num_edges[b * e : (b + 1) * e]:
                sizes += (n, n, n)
            for n in report.num_nodes[b * q : (b + 1) * q]:
                sizes += (n,) * per_node
        sizes.append(memory.shape[0] - sum(sizes))
        # Unlike views from split(), these tensors do not share a version counter: users may change them one by one.
        pieces = memory.unsafe_split_with_sizes(sizes)
        samples: list[SampledSubgraph] = []
        at = 0
        for b in batches:  # without comprehensions, whose calls take longer than few types
            tree: dict[NodeType, Tensor] = {}
            num_nodes: dict[NodeType, list[int]] = {}
            num_edges: dict[EdgeType, list[int]] = {}
            sample = SampledSubgraph(
                node={},
                row={},
                col={},
                edge_id={},
                tree=tree if per_node == 2 else None,
                num_sampled_nodes=num_nodes,
                num_sampled_edges=num_edges,
            )
            for edge_type, r in self.segments:
                i = at + 3 * r
                sample.row[edge_type], sample.col[edge_type], sample.edge_id[edge_type] = pieces[i : i + 3]
                num_edges[edge_type] = report.edges[b * e + r]
            at += 3 * e
            for t, node_type in enumerate(self.types, b * q):
                sample.node[node_type], num_nodes[node_type] = pieces[at], report.nodes[t]
                if per_node == 2:
                    tree[node_type] = pieces[at + 1]
                at += per_node
            samples.append(sample)
        return samples


class Results:
    """The memory of the samples of a launch.

    Args:
        layout: how samples share memory.
        sizes: of the allocations.
        num_batches: number of samples.
        device: where they are.
    """

    def __init__(self, layout: Layout, sizes: list[int], num_batches: int, device: torch.device) -> None:
        self.layout, self._parts = layout, layout.parts(num_batches)
        self._memory = [torch.empty(n, dtype=torch.int64, device=device) for n in sizes]
        self.addresses = [memory.data_ptr() for memory in self._memory]
        """Addresses of the allocations."""
        self.report: LaunchReport
        """The counts of the samples, once they are known."""
        self.weights: list[dict[EdgeType, Tensor]] | None = None
        """Weights of the edges of each sample, if edges have weights."""

    def cut(self) -> list[SampledSubgraph]:
        """Return the samples, which own the memory."""
        samples: list[SampledSubgraph] = []
        for memory, batches in zip(self._memory, self._parts, strict=True):
            samples += self.layout.samples(memory, batches, self.report)
        for sample, weight in zip(samples, self.weights or (), strict=False):
            sample.edge_weight = weight
        return samples


def parts_of(num_batches: int) -> list[range]:
    """Return the batches that share each allocation."""
    return [range(b, min(b + _SHARING, num_batches)) for b in range(0, num_batches, _SHARING)]
