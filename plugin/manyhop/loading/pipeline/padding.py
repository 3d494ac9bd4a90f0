"""Samples of fixed sizes, so that a training step can be captured in a CUDA graph, or compiled once.

Nodes and edges are in *blocks*, one per hop (a single one if a sample has no counts per hop). Each block is padded
separately, so the counts per hop, by which models trim their layers, are also fixed. A padding node has the global id
0. A padding edge leads from a padding node of the block that its hop may add to, to a padding node of the block that
its hop samples for: no message from there arrives at a node of the sample. The seeds remain at the beginning.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyhop.graph import EdgeType, NodeType
from manyhop.loading.pipeline.block_sizes import SPARE, Blocks, Counts, Filled, PadSizes, padding_ends
from manyhop.sampling import SampledSubgraph
from manyhop.system import triton_compiler


@dataclass(slots=True, eq=False, kw_only=True)  # frozen ones take longer to make
class Padded:
    """A sample of fixed sizes."""

    sample: SampledSubgraph
    """The sample; its counts per hop are the sizes of the blocks. Padding nodes have the global id 0, padding edges the
    id 0, and in disjoint samples padding nodes are in an extra tree, the last one."""

    sizes: PadSizes
    """The sizes of its blocks."""

    counts: Counts
    """The numbers of nodes and edges without padding, which are the first ones of each block."""

    grown: int
    """How many times the sizes grew because the sample did not fit, see :meth:`PadSizes.grown`; 0 for most samples.
    Samples with equal numbers have equal sizes."""

    node_mask: dict[NodeType, Tensor]
    """``[num_nodes] bool``: False for padding."""

    edge_mask: dict[EdgeType, Tensor]
    """``[num_edges] bool``: False for padding."""

    jobs: Any
    """Addresses for kernels: ``manyhop.loading.pipeline.gpu.Jobs``; ``None`` on the CPU."""

    def num_rows(self, kind: NodeType | EdgeType, block: int | None = None) -> int:
        """Return the number of nodes or edges of a type, padding included, in all blocks or in one."""
        sizes = self.sizes.nodes[kind] if isinstance(kind, str) else self.sizes.edges[kind]
        return sum(sizes) if block is None else sizes[block]

    def tails(self, kind: NodeType | EdgeType, block: int | None = None) -> list[tuple[int, int]]:
        """Return begin and length of the padding of a type in each block, or of one block, in its own rows."""
        if isinstance(kind, str):
            sizes, counts = self.sizes.nodes[kind], self.counts.nodes[kind]
        else:
            sizes, counts = self.sizes.edges[kind], self.counts.edges[kind]
        if block is not None:
            sizes, counts = sizes[block : block + 1], counts[block : block + 1]
        begins = (0, *accumulate(sizes))
        return [(a + n, size - n) for a, n, size in zip(begins, counts, sizes, strict=False) if n < size]


class PaddedRows(NamedTuple):
    """A tensor with a row per node or edge of a type of a padded sample."""

    value: Tensor
    padded: Padded
    kind: NodeType | EdgeType
    dim: int = 0
    """The dimension of the rows."""
    block: int | None = None
    """The block of the nodes or edges; ``None``: all."""


class Padder:
    """Pads samples to fixed sizes. Thread-safe, on any streams.

    Args:
        sizes: sizes of the blocks; they grow for a sample that does not fit.
        num_trees: largest number of trees of a disjoint sample; padding nodes are in tree ``num_trees``.
        device: a GPU whose kernels are loaded now; ``None``: with the first padded sample there.
    """

    def __init__(self, sizes: PadSizes, *, num_trees: int, device: torch.device | None = None) -> None:
        self.sizes, self._num_trees = sizes, num_trees
        self._frames: dict[tuple[bool, int], Any] = {}
        if device is not None and triton_compiler.runs_on(device):
            _kernels().prepare_padding(device)

    def __call__(self, samples: Sequence[SampledSubgraph]) -> list[Padded]:
        """Return the padded samples of one device; on a GPU, one kernel pads all of them."""
        device = next(iter(samples[0].node.values())).device
        on_gpu = triton_compiler.runs_on(device)
        counts = [Counts.of(sample) for sample in samples]
        grown = [self.sizes.times_to_fit(own) for own in counts]
        frames = [self._frame(times, on_gpu=on_gpu) for times in grown]
        if on_gpu:
            filled: list[Filled] = _kernels().fill(frames, samples, counts, device, self._num_trees)
        else:
            filled = [frame.fill(*sample) for frame, *sample in zip(frames, samples, counts, strict=True)]
        for (out, *_), frame, sample, own in zip(filled, frames, samples, counts, strict=True):
            if sample.edge_weight is not None:
                out.edge_weight = {
                    e: _padded(weight, own.edges[e], frame.sizes.edges[e], weight.new_zeros(sum(frame.sizes.edges[e])))
                    for e, weight in sample.edge_weight.items()
                }
        return [
            Padded(sample=out, sizes=frame.sizes, counts=own, grown=times, node_mask=nodes, edge_mask=edges, jobs=jobs)
            for (out, nodes, edges, jobs), frame, own, times in zip(filled, frames, counts, grown, strict=True)
        ]

    def _frame(self, times: int, *, on_gpu: bool) -> Any:
        """Return the frame for sizes that have grown ``times`` times."""
        frame = self._frames.get((on_gpu, times))
        if frame is None:
            sizes = self.sizes.grown(times)
            made = _kernels().GPUFrame(sizes) if on_gpu else _Frame(sizes, self._num_trees)
            frame = self._frames.setdefault((on_gpu, times), made)
        return frame

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_frames": {}}


def clear_rows(rows: Sequence[PaddedRows]) -> None:
    """Write zeros over the rows of padding; on a GPU, with one kernel for all tensors."""
    by_kernel: list[tuple[Tensor, int, int]] = []
    others: list[Tensor] = []
    num_blocks = 0
    for value, padded, kind, dim, block in rows:
        jobs = padded.jobs
        if (
            jobs is not None
            and dim == 0
            and type(value) is Tensor  # only its memory changes
            and not value.requires_grad
            and value.is_contiguous()
            and value.get_device() == jobs.device
            and value.size(0) == padded.num_rows(kind, block)
        ):
            by_kernel.append((value, jobs.addresses[kind], -1 if block is None else block))
            num_blocks = jobs.num_blocks
        elif dim == 0:  # a slice needs half the time of narrow
            others += [value[begin : begin + n] for begin, n in padded.tails(kind, block)]
        else:
            others += [value.narrow(dim, begin, n) for begin, n in padded.tails(kind, block)]
    if by_kernel:
        _kernels().clear(by_kernel, num_blocks)
    if others:
        torch._foreach_zero_(others)


@functools.cache
def _kernels() -> Any:
    from manyhop.loading.pipeline import gpu  # imports triton

    return gpu


class _Frame:
    """Tables for samples of the same fixed sizes, on the CPU."""

    def __init__(self, sizes: PadSizes, num_trees: int) -> None:
        self.sizes = sizes
        self._first = {t: list(accumulate(blocks, initial=0)) for t, blocks in sizes.nodes.items()}
        largest = max((sum(blocks) for blocks in (*sizes.nodes.values(), *sizes.edges.values())), default=0)
        self._number = torch.arange(largest, device="cpu")
        self._yes = torch.ones(largest, dtype=torch.bool, device="cpu")
        self._zero, self._tree = torch.zeros_like(self._number), torch.full_like(self._number, num_trees)
        self._no = torch.zeros_like(self._yes)
        self._spare: dict[EdgeType, tuple[list[Tensor], list[Tensor]]] = {}
        """Sources and destinations of the padding edges of each hop by edge type, ``[size]``, in ascending order."""
        for e, hops in sizes.edges.items():
            self._spare[e] = [], []
            for hop, size in enumerate(hops):
                step = self._number[:size] * SPARE // max(size, 1)
                ends = padding_ends(e, hop, len(sizes.nodes[e[0]]))
                for spare, (t, block) in zip(self._spare[e], ends, strict=True):
                    spare.append(self._first[t][block + 1] - SPARE + step)

    def fill(self, sample: SampledSubgraph, counts: Counts) -> Filled:
        """Return the padded sample."""
        sizes, trees = self.sizes, sample.tree
        number = {  # new local ids
            t: torch.cat([self._number[a : a + n] for a, n in zip(self._first[t], counts.nodes[t], strict=False)])
            for t in sample.node
        }
        row, col = {}, {}
        for e in sample.row:
            parts = []  # of row and col, which are adjacent in memory
            for t, ids, spare in zip((e[0], e[2]), (sample.row[e], sample.col[e]), self._spare[e], strict=True):
                own = number[t].index_select(0, ids).split_with_sizes(list(counts.edges[e]))
                parts += [part for real, fill in zip(own, spare, strict=True) for part in (real, fill[real.numel() :])]
            row[e], col[e] = torch.cat(parts or [ids]).view(2, -1).unbind()
        nodes = {t: (counts.nodes[t], sizes.nodes[t]) for t in sample.node}
        edges = {e: (counts.edges[e], sizes.edges[e]) for e in sample.edge_id}
        hops = sample.num_sampled_nodes is not None
        padded = SampledSubgraph(
            node={t: _padded(sample.node[t], *of, self._zero) for t, of in nodes.items()},
            row=row,
            col=col,
            edge_id={
                e: ids if ids is None else _padded(ids, *edges[e], self._zero) for e, ids in sample.edge_id.items()
            },
            tree=None if trees is None else {t: _padded(trees[t], *of, self._tree) for t, of in nodes.items()},
            num_sampled_nodes=sizes.lists_of_nodes() if hops else None,
            num_sampled_edges=sizes.lists_of_edges() if hops else None,
        )
        return padded, self._masks(nodes), self._masks(edges), None

    def _masks(self, kinds: dict[Any, tuple[Blocks, Blocks]]) -> dict[Any, Tensor]:
        """Return ``[sum(sizes)] bool`` of each type, False for padding, from the counts and sizes of its blocks."""
        return {kind: _padded(self._yes[: sum(of[0])], *of, self._no) for kind, of in kinds.items()}


def _padded(values: Tensor, counts: Blocks, sizes: Blocks, fill: Tensor) -> Tensor:
    """Return ``values``, whose blocks are adjacent, with each block continued by entries of ``fill`` up to its size."""
    parts = [values[:0]]
    for part, size in zip(values.split_with_sizes(list(counts)), sizes, strict=True):
        parts += (part, fill[: size - part.numel()])
    return torch.cat(parts)
