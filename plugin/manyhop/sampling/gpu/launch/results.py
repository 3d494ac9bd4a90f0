"""The samples of a launch: the memory that they share, and how it is cut once their sizes are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import sub
from typing import NamedTuple

import torch
from torch import Tensor

from manyhop.sampling.contract import SampledSubgraph
from manyhop.sampling.gpu.kernels.hops.finish import SHARING
from manyhop.sampling.gpu.launch.capacity import Ints
from manyhop.sampling.gpu.launch.plan import Plan

_SHARING = SHARING.value


class Told(NamedTuple):
    """What a launch tells the host."""

    nodes: list[list[int]]
    """Of each region, what each hop added, seeds first."""
    edges: list[list[int]]
    """Of each row, what each hop added."""
    num_nodes: list[int]
    """Of each region, all of them."""
    num_edges: list[int]
    """Of each row, all of them."""
    failed: list[int]
    """What went wrong."""

    @classmethod
    def read(cls, nodes: Ints, edges: Ints, failed: Ints) -> Told:
        """From how many there were after each hop, ``[num_hops + 1, num_regions]`` and ``[num_hops + 1, num_rows]``."""
        if nodes.shape[1] == edges.shape[1] == 1:  # numpy takes longer for single numbers than Python
            num_nodes, num_edges = nodes.ravel().tolist(), edges.ravel().tolist()
            of_hops = [num_nodes[0], *map(sub, num_nodes[1:], num_nodes)], [*map(sub, num_edges[1:], num_edges)]
            return cls([of_hops[0]], [of_hops[1]], num_nodes[-1:], num_edges[-1:], failed.tolist())
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
    """How samples lie in memory, one behind the other in allocations for a few batches each.

    Of a batch come the rows (row, column and edge id, one behind the other), then the regions (node, and tree where
    there are trees). An allocation may have more room than its samples need; what is left over is at its end.

    Args:
        plan: the graph and the spec.
        row_of: the rows of each batch, by edge type.
        num_batches: of a launch.
    """

    def __init__(self, plan: Plan, row_of: list[list[int]], num_batches: int) -> None:
        self.per_node = per_node = 2 if plan.spec.disjoint else 1
        self.num_edge_types, self.num_types = len(plan.edge_types), len(plan.types)
        # Where things are in the pieces of a batch.
        nodes_at = 3 * self.num_edge_types
        self.pieces = nodes_at + per_node * self.num_types
        rows = row_of[0] if row_of else []
        self.rows = [(name, r, 3 * r) for name, r in zip(plan.edge_types, rows, strict=True)]
        self.nodes = list(zip(plan.types, range(nodes_at, self.pieces, per_node), strict=True))
        one_type = self.num_types == self.num_edge_types == per_node == 1
        self.sizes: Callable[[range, Told], list[int]] = self._sizes_of_one_type if one_type else self._sizes
        """Of the pieces of batches."""
        self.samples: Callable[[Sequence[Tensor], range, Told], Iterator[SampledSubgraph]] = (
            self._samples_of_one_type if one_type else self._samples
        )
        """The samples of some batches, from their pieces."""
        self._all = parts_of(num_batches)

    def parts(self, num_batches: int) -> list[range]:
        """The batches of each allocation."""
        return self._all if num_batches == self._all[-1].stop else parts_of(num_batches)

    def room(self, edges: Sequence[int], nodes: Sequence[int], num_batches: int) -> list[int]:
        """The size of each allocation, for the edges of each row of a launch and the nodes of each region."""
        e, q = self.num_edge_types, self.num_types
        return [
            3 * sum(edges[p.start * e : p.stop * e]) + self.per_node * sum(nodes[p.start * q : p.stop * q])
            for p in self.parts(num_batches)
        ]

    def _sizes(self, batches: range, told: Told) -> list[int]:
        e, q = self.num_edge_types, self.num_types
        sizes: list[int] = []
        for b in batches:
            for n in told.num_edges[b * e : (b + 1) * e]:
                sizes += (n, n, n)
            for n in told.num_nodes[b * q : (b + 1) * q]:
                sizes += (n,) * self.per_node
        return sizes

    def _samples(self, pieces: Sequence[Tensor], batches: range, told: Told) -> Iterator[SampledSubgraph]:
        rows, nodes, edges, e, q = self.rows, self.nodes, told.edges, self.num_edge_types, self.num_types
        end = 0
        for b in batches:
            begin, end = end, end + self.pieces
            own, first = pieces[begin:end], b * e
            added = told.nodes[b * q : (b + 1) * q]
            sample = object.__new__(SampledSubgraph)
            fields = sample.__dict__  # of a frozen dataclass, in a quarter of the time that its __init__ takes
            fields["node"] = {name: own[i] for name, i in nodes}
            fields["row"] = {name: own[i] for name, _, i in rows}
            fields["col"] = {name: own[i + 1] for name, _, i in rows}
            fields["edge_id"] = {name: own[i + 2] for name, _, i in rows}
            fields["tree"] = {name: own[i + 1] for name, i in nodes} if self.per_node == 2 else None
            fields["num_sampled_nodes"] = {name: n for (name, _), n in zip(nodes, added, strict=True)}
            fields["num_sampled_edges"] = {name: edges[first + r] for name, r, _ in rows}
            fields["edge_weight"] = None
            yield sample

    # Most graphs have one type; then the same takes a third of the time, which counts where batches are small.

    def _sizes_of_one_type(self, batches: range, told: Told) -> list[int]:
        num_edges, num_nodes, sizes = told.num_edges, told.num_nodes, list[int]()
        for b in batches:
            n = num_edges[b]
            sizes += (n, n, n, num_nodes[b])
        return sizes

    def _samples_of_one_type(self, pieces: Sequence[Tensor], batches: range, told: Told) -> Iterator[SampledSubgraph]:
        ((node_type, _),), ((edge_type, _, _),) = self.nodes, self.rows
        new, piece = object.__new__, iter(pieces)
        for b in batches:
            sample = new(SampledSubgraph)
            fields = sample.__dict__
            fields["row"] = {edge_type: next(piece)}
            fields["col"] = {edge_type: next(piece)}
            fields["edge_id"] = {edge_type: next(piece)}
            fields["node"] = {node_type: next(piece)}
            fields["tree"] = None
            fields["num_sampled_nodes"] = {node_type: told.nodes[b]}
            fields["num_sampled_edges"] = {edge_type: told.edges[b]}
            fields["edge_weight"] = None
            yield sample


class Results:
    """The memory of the samples of a launch, on a device."""

    def __init__(self, layout: Layout, room: list[int], num_batches: int, device: torch.device) -> None:
        self._layout, self._room, self._parts = layout, room, layout.parts(num_batches)
        self._memory = [torch.empty(n, dtype=torch.int64, device=device) for n in room]
        self.addresses = [memory.data_ptr() for memory in self._memory]
        """Of the allocations."""

    def cut(self, told: Told) -> list[SampledSubgraph]:
        """The samples, now that their sizes are known; the memory is theirs."""
        layout = self._layout
        samples: list[SampledSubgraph] = []
        for memory, room, batches in zip(self._memory, self._room, self._parts, strict=True):
            sizes = layout.sizes(batches, told)
            sizes.append(room - sum(sizes))
            # These are no views of one tensor, as those of split() are: a change of one would count as a change of all.
            samples += layout.samples(memory.unsafe_split_with_sizes(sizes), batches, told)
        return samples


def parts_of(num_batches: int) -> list[range]:
    """Which batches share an allocation."""
    return [range(b, min(b + _SHARING, num_batches)) for b in range(0, num_batches, _SHARING)]
