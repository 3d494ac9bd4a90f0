"""The samples of a launch: the memory that they share, and how it is cut once their sizes are known."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from manyhop.sampling._contract import SampledSubgraph

if TYPE_CHECKING:
    from manyhop.sampling._gpu.workspace import Workspace

_SHARING = 4  # batches whose samples share an allocation, which takes as long as all else that is done for them


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


class Layout:
    """How much memory the samples of a launch get, and where in it they lie.

    A batch has a block for each edge type (row, column and edge id, one behind the other), then one for each node type
    (node, and tree where there are trees). A block may have more room than its sample needs.

    Args:
        workspace: that of the launch.
        edges: room for the edges of each row of the launch.
        nodes: room for the nodes of each region.
        num_batches: how many batches there are. The others, which the launch had room for, get no memory.
    """

    def __init__(self, workspace: Workspace, edges: Sequence[int], nodes: Sequence[int], num_batches: int) -> None:
        plan, num_rows = workspace.plan, workspace.num_rows
        num_types, num_edge_types = len(plan.types), len(plan.edge_types)
        self.disjoint = plan.spec.disjoint
        self.num_blocks = num_rows + workspace.num_regions
        self.parts: list[_Part] = []
        for first in range(0, num_batches, _SHARING):
            batches = range(first, min(first + _SHARING, num_batches))
            sizes: list[int] = []
            owners: list[int] = []
            for b in batches:
                regions = range(b * num_types, (b + 1) * num_types)
                sizes += [3 * edges[r] for r in workspace.row_of[b]]
                sizes += [(2 if self.disjoint else 1) * nodes[q] for q in regions]
                owners += [*workspace.row_of[b], *(num_rows + q for q in regions)]
            *begins, size = accumulate(sizes, initial=0)
            self.parts.append(_Part(batches, size, sizes, [8 * n for n in begins], owners))
        # Where in the pieces of a batch, of which a block has one more than numbers per edge or node, things are.
        per_type, nodes_at = 3 if self.disjoint else 2, 4 * num_edge_types
        self.pieces = nodes_at + per_type * num_types
        self.rows = list(zip(plan.edge_types, range(0, nodes_at, 4), strict=True))
        self.nodes = list(zip(plan.types, range(nodes_at, self.pieces, per_type), strict=True))


class _Part(NamedTuple):
    """An allocation."""

    batches: range
    size: int
    blocks: list[int]
    """Their sizes."""
    begins: list[int]
    """Bytes before each block."""
    owners: list[int]
    """The row of each block; the number of rows and the region."""


class Results:
    """The memory of the samples of a launch, on a device."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self._layout = layout
        self._memory = [torch.empty(part.size, dtype=torch.int64, device=device) for part in layout.parts]
        self.addresses = [0] * layout.num_blocks
        """Of the blocks of all rows of the launch, then of all regions; 0 for batches that are not there."""
        for memory, part in zip(self._memory, layout.parts, strict=True):
            address = memory.data_ptr()
            for owner, begin in zip(part.owners, part.begins, strict=True):
                self.addresses[owner] = address + begin

    def cut(self, workspace: Workspace, told: Told) -> list[SampledSubgraph]:
        """The samples, now that their sizes are known; the memory is theirs."""
        layout, row_of = self._layout, workspace.row_of
        disjoint, rows, nodes = layout.disjoint, layout.rows, layout.nodes
        _, all_edges, num_nodes, num_edges, _ = told
        num_types = len(nodes)
        samples = []
        for memory, (batches, _, blocks, _, _) in zip(self._memory, layout.parts, strict=True):
            block, sizes = iter(blocks), list[int]()
            for b in batches:
                for r in row_of[b]:
                    n = num_edges[r]
                    sizes += (n, n, n, next(block) - 3 * n)
                for n in num_nodes[b * num_types : (b + 1) * num_types]:
                    sizes += (n, n, next(block) - 2 * n) if disjoint else (n, next(block) - n)
            # These are no views of one tensor, as those of split() are: a change of one would count as a change of all.
            pieces: Sequence[Tensor] = memory.unsafe_split_with_sizes(sizes)
            end = 0
            for b in batches:
                begin, end = end, end + layout.pieces
                own, of_row = pieces[begin:end], row_of[b]
                added = told.nodes[b * num_types : (b + 1) * num_types]
                sample = _sample(
                    node={name: own[i] for name, i in nodes},
                    row={name: own[i] for name, i in rows},
                    col={name: own[i + 1] for name, i in rows},
                    edge_id={name: own[i + 2] for name, i in rows},
                    tree={name: own[i + 1] for name, i in nodes} if disjoint else None,
                    num_sampled_nodes={name: n for (name, _), n in zip(nodes, added, strict=True)},
                    num_sampled_edges={name: all_edges[r] for (name, _), r in zip(rows, of_row, strict=True)},
                    edge_weight=workspace.edge_weights(of_row, num_edges),
                )
                samples.append(sample)
        return samples


def _sample(**fields: Any) -> SampledSubgraph:
    """A sample of all these fields, in a quarter of the time that a frozen dataclass takes."""
    sample = object.__new__(SampledSubgraph)
    sample.__dict__.update(fields)
    return sample
