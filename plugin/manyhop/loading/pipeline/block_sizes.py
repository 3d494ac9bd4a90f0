"""Fixed sizes of samples: numbers of nodes and edges of each block of a padded sample, and their growth.

See `padding` for blocks and padding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from statistics import median
from typing import Any, Final, TypeAlias

from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import EdgeType, NodeType
from manyhop.sampling import SampledSubgraph

Blocks = tuple[int, ...]

PROBES: Final = 16
"""Number of batches that sizes are found from, if there are that many."""
MARGIN: Final = 0.1
"""Largest margin above the largest count, as a share of it; it applies if there are fewer batches."""
LEAST_MARGIN: Final = 0.01
SPREADS: Final = 4
"""Otherwise, the margin is this many times the difference of the largest count and the median."""
MULTIPLE: Final = 64
GROWTH: Final = 1.25
SPARE: Final = 32
"""Nodes of each block that are always padding. Padding edges are spread over them: sums at a single one would queue."""


@dataclass(slots=True, kw_only=True)
class Counts:
    """Numbers of nodes and edges of a sample."""

    nodes: Mapping[NodeType, Blocks]
    """By node type: ``[num_hops + 1]`` nodes per block, the seeds, then the nodes that each hop added. Without counts
    per hop: ``[1]``."""

    edges: Mapping[EdgeType, Blocks]
    """By edge type: ``[num_hops]`` edges of each hop. Without counts per hop: ``[1]``."""

    @staticmethod
    def of(sample: SampledSubgraph) -> Counts:
        """Return the counts of a sample."""
        nodes, edges = sample.num_sampled_nodes, sample.num_sampled_edges
        return Counts(
            nodes={t: (node.numel(),) if nodes is None else tuple(nodes[t]) for t, node in sample.node.items()},
            edges={t: (row.numel(),) if edges is None else tuple(edges[t]) for t, row in sample.row.items()},
        )


@dataclass(kw_only=True)
class PadSizes(Counts):
    """Fixed sizes of the blocks of a sample; the last ``SPARE`` nodes of each non-empty block are padding."""

    empty: frozenset[NodeType | EdgeType] = frozenset()
    """Types without nodes or edges in the graph; their blocks remain empty."""

    def lists_of_nodes(self) -> dict[NodeType, list[int]]:
        """Return the sizes in the form of ``num_sampled_nodes``."""
        return {t: list(blocks) for t, blocks in self.nodes.items()}

    def lists_of_edges(self) -> dict[EdgeType, list[int]]:
        """Return the sizes in the form of ``num_sampled_edges``."""
        return {e: list(blocks) for e, blocks in self.edges.items()}

    @cached_property
    def most(self) -> tuple[list[tuple[NodeType, Blocks]], list[tuple[EdgeType, Blocks]]]:
        """The largest counts that fit, of nodes and of edges."""
        nodes = [(t, tuple([size and size - SPARE for size in blocks])) for t, blocks in self.nodes.items()]
        return nodes, list(self.edges.items())

    def holds(self, counts: Counts) -> bool:
        """Return whether a sample with these counts fits."""
        nodes, edges = self.most
        return all(
            [all([n <= m for n, m in zip(counts.nodes[t], most, strict=True)]) for t, most in nodes]
            + [all([n <= m for n, m in zip(counts.edges[e], most, strict=True)]) for e, most in edges]
        )

    def grown(self, times: int) -> PadSizes:
        """Return sizes that have grown ``times`` times by ``GROWTH``, to at least ``MULTIPLE * 4**(times - 1)``."""

        def grow(t: NodeType | EdgeType, blocks: Blocks) -> Blocks:
            if t in self.empty or times == 0:
                return blocks
            return tuple(_rounded(max(size * GROWTH**times, MULTIPLE * 4 ** (times - 1))) for size in blocks)

        return PadSizes(
            nodes={t: grow(t, blocks) for t, blocks in self.nodes.items()},
            edges={t: grow(t, blocks) for t, blocks in self.edges.items()},
            empty=self.empty,
        )

    def times_to_fit(self, counts: Counts) -> int:
        """Return how many times the sizes must grow to hold a batch of these counts; 0: it fits.

        The overflow policy: no batch is rejected or cut. The sizes of a batch depend on the batch alone, and there are
        few of them, so that a step is captured, or compiled, once for each.
        """
        sizes, times = self, 0
        while not sizes.holds(counts):
            times += 1
            sizes = self.grown(times)
        return times


def pad_sizes(
    probes: Sequence[Counts],
    *,
    seeds: Mapping[NodeType, int] | None = None,
    empty: Collection[NodeType | EdgeType] = (),
) -> PadSizes:
    """Return fixed sizes for all batches of a loader, from some of them.

    A size is the largest count of the probes and a margin, as a multiple of ``MULTIPLE``. Counts that differ less need
    a smaller margin. For larger batches, see :meth:`PadSizes.times_to_fit`.

    Args:
        probes: counts of some full batches.
        seeds: largest number of seeds of a batch by node type, if it is known; they need no margin.
        empty: node types, and edge types between other types, without entries in the graph.

    Raises:
        InputError: there are no probes.
    """
    if not probes:
        raise InputError("Expected the counts of at least one batch to find sizes for padding, got none.")

    def held(blocks: Iterable[Blocks]) -> list[float]:
        return [_with_margin(counts) for counts in zip(*blocks, strict=True)]

    nodes = {t: held(p.nodes[t] for p in probes) for t in probes[0].nodes}
    edges = {e: held(p.edges[e] for p in probes) for e in probes[0].edges}
    node_sizes = {t: [_rounded(n + SPARE) if n else 0 for n in counts] for t, counts in nodes.items()}
    edge_sizes = {e: tuple(map(_rounded, counts)) for e, counts in edges.items()}
    for t, n in (seeds or {}).items():
        node_sizes[t][0] = _rounded(n + SPARE) if n else 0
    for e, hops in edge_sizes.items():
        for hop, size in enumerate(hops):
            for t, block in padding_ends(e, hop, len(node_sizes[e[0]])):
                if size and not node_sizes[t][block]:
                    node_sizes[t][block] = MULTIPLE
    without = {*empty, *(e for e in edges if e[0] in empty or e[2] in empty)}
    return PadSizes(
        nodes={t: tuple(blocks) for t, blocks in node_sizes.items()}, edges=edge_sizes, empty=frozenset(without)
    )


def padding_ends(t: EdgeType, hop: int, num_blocks: int) -> tuple[tuple[NodeType, int], tuple[NodeType, int]]:
    """Return the block of nodes that the edges of a hop may add to, and the block of its frontier."""
    return (t[0], min(hop + 1, num_blocks - 1)), (t[2], hop)


def _with_margin(counts: Sequence[int]) -> float:
    most = max(counts)
    spread = SPREADS * (most - median(counts)) if len(counts) >= PROBES else MARGIN * most
    return most + min(max(spread, LEAST_MARGIN * most), MARGIN * most)


def _rounded(n: float) -> int:
    return ceil(n / MULTIPLE) * MULTIPLE


Filled: TypeAlias = tuple[SampledSubgraph, dict[NodeType, Tensor], dict[EdgeType, Tensor], Any]
"""A padded sample, the masks of its nodes and edges, and its jobs for kernels."""
