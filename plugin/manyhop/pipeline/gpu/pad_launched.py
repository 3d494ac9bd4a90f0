"""Samples of a launch, padded before there are tensors of each: memory by type, for all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from manyhop.graph import EdgeType, NodeType
from manyhop.pipeline.block_sizes import PadSizes
from manyhop.pipeline.gpu.kernels import pad as k
from manyhop.pipeline.gpu.pad import Cleared, GPUFrame, enqueue_clearing, enqueue_padding, host_table
from manyhop.sampling.gpu.launch.results import Results

_IN, _OUT, _MASK, _BEGINS = k.IN.value, k.OUT.value, k.MASK.value, k.BEGINS.value


@dataclass(slots=True, eq=False, kw_only=True)
class PaddedTogether:
    """Samples of the same fixed sizes: of each type the entries of all of them, sample by sample."""

    num: int
    """Number of samples."""

    sizes: PadSizes
    """Sizes of the blocks of each."""

    node: dict[NodeType, Tensor]
    """``[num * num_nodes] int64``: global ids; of padding 0."""

    tree: dict[NodeType, Tensor] | None
    """``[num * num_nodes] int64``; ``None`` unless disjoint."""

    edge_index: dict[EdgeType, Tensor]
    """``[num * 2, num_edges] int64``: row and column of each sample, which are local ids."""

    edge_id: dict[EdgeType, Tensor]
    """``[num * num_edges] int64``; of padding 0."""

    node_mask: dict[NodeType, Tensor]
    """``[num * num_nodes] bool``: which are no padding."""

    edge_mask: dict[EdgeType, Tensor]
    """``[num * num_edges] bool``."""

    memory: list[Tensor]
    """What the tensors above are parts of."""

    frame: GPUFrame
    table: Tensor
    """The jobs of kernels, of all samples."""

    def clear(self, rows: list[tuple[NodeType | EdgeType, int, Tensor]]) -> None:
        """Let the rows of padding be zeros; enqueued on the current stream.

        Args:
            rows: type of nodes or edges, number of the first sample, ``[num_samples * num_rows, ...]`` contiguous.
        """
        table, frame = self.table.data_ptr(), self.frame
        parts: list[Cleared] = []
        most, step = 0, 8 * frame.jobs.size
        for kind, first, value in rows:
            if value.numel():
                number = frame.number[kind]
                num, nbytes = value.size(0) // sum(frame.blocks[number]), value.nbytes // value.size(0)
                job = table + 8 * number * frame.jobs.shape[1] + first * step
                parts.append(Cleared(value.data_ptr(), nbytes, job, -1, num))
                most = max(most, value.nbytes // num)
        if parts:
            enqueue_clearing(parts, most, frame.num_blocks, self.table.device, step)


class LaunchedFrame:
    """What launches have in common whose samples get the same fixed sizes.

    Args:
        frame: of these sizes.
        launched: samples of such a launch, by which the types are known.
        device: the GPU; a CPU where triton interprets its kernels.
        num_trees: the tree of padding nodes.
    """

    def __init__(self, frame: GPUFrame, launched: Results, device: torch.device, num_trees: int) -> None:
        layout, sizes = launched.layout, frame.sizes
        self._frame, self._device, self._num_trees, self._disjoint = frame, device, num_trees, layout.per_node == 2
        types, edge_types = [t for t, _ in layout.nodes], [e for e, _, _ in layout.segments]
        self._types = [types.index(t) for t in sizes.nodes]
        self._edge_types = [edge_types.index(e) for e in sizes.edges]
        self._lengths = [sum(own) for own in frame.blocks]
        self._most = np.zeros((len(frame.blocks), frame.num_blocks), np.int64)
        nodes, edges = sizes.most
        for row, (_, own) in zip(self._most, [*nodes, *edges], strict=True):
            row[: len(own)] = own
        # Of the outputs of each job, in bytes, for one sample: where their memory begins, how much of it a sample has,
        # where in that they begin. An output that there is not has none.
        first, step, inside = list[list[int]](), list[list[int]](), list[list[int]]()
        self._parts: list[int] = []
        for i, n in enumerate(self._lengths):
            at = sum(self._parts)
            if i < len(types):
                tree = 8 * n * self._disjoint
                first, step, inside = [*first, [at, at + tree, 0]], [*step, [8 * n, tree, 0]], [*inside, [0, 0, 0]]
                self._parts += [8 * n] * (1 + self._disjoint)
            else:
                first, step = [*first, [at, at, at + 16 * n]], [*step, [16 * n, 16 * n, 8 * n]]
                inside = [*inside, [0, 8 * n, 0]]
                self._parts += [16 * n, 8 * n]
        self._first, self._step, self._inside = np.array(first), np.array(step), np.array(inside)
        self._masks = np.cumsum([0, *self._lengths[:-1]])

    def pad(self, launched: Results, first: int, num: int) -> PaddedTogether | None:
        """Return some samples, padded, enqueued on the current stream; ``None``: they do not fit.

        Args:
            launched: all samples of a launch.
            first: number of the first of those that are wanted.
            num: how many.
        """
        frame, device, some = self._frame, self._device, slice(first, first + num)
        num_types, num_jobs = len(self._types), len(self._lengths)
        counts = np.zeros((num, *self._most.shape), np.int64)
        counts[:, :num_types, : launched.nodes.shape[2]] = launched.nodes[some, self._types]
        counts[:, num_types:, : launched.edges.shape[2]] = launched.edges[some, self._edge_types]
        if (counts > self._most).any():
            return None
        ids = torch.empty(num * sum(self._parts) // 8, dtype=torch.int64, device=device)
        masks = torch.empty(num * sum(self._lengths), dtype=torch.bool, device=device)
        # These are no views of one tensor, as those of split() are: a change of one would count as a change of all.
        id_of = iter(ids.unsafe_split_with_sizes([num * nbytes // 8 for nbytes in self._parts]))
        mask_of = iter(masks.unsafe_split_with_sizes([num * n for n in self._lengths]))
        node, tree = dict[NodeType, Tensor](), dict[NodeType, Tensor]()
        edge_index, edge_id = dict[EdgeType, Tensor](), dict[EdgeType, Tensor]()
        for t in frame.sizes.nodes:
            node[t] = next(id_of)
            if self._disjoint:
                tree[t] = next(id_of)
        for e, n in zip(frame.sizes.edges, self._lengths[num_types:], strict=True):
            edge_index[e], edge_id[e] = next(id_of).view(2 * num, n), next(id_of)
        table, staging = host_table((num * num_jobs, frame.jobs.shape[1]), device)
        jobs = table.reshape(num, num_jobs, -1)
        jobs[:] = frame.jobs
        order = np.arange(num)[:, None, None]
        nodes, edges = launched.begins
        jobs[:, :num_types, _IN : _IN + 2] = nodes[some, self._types]
        jobs[:, num_types:, _IN:_OUT] = edges[some, self._edge_types]
        outputs = ids.data_ptr() + num * self._first + self._inside + order * self._step
        jobs[:, :, _OUT:_MASK] = outputs * (self._step > 0)
        jobs[:, :, _MASK] = masks.data_ptr() + num * self._masks + order[:, :, 0] * self._lengths
        counts.cumsum(axis=2, out=jobs[:, :, _BEGINS + 1 : _BEGINS + 1 + frame.num_blocks])
        return PaddedTogether(
            num=num,
            sizes=frame.sizes,
            node=node,
            tree=tree if self._disjoint else None,
            edge_index=edge_index,
            edge_id=edge_id,
            node_mask={t: next(mask_of) for t in node},
            edge_mask={e: next(mask_of) for e in edge_index},
            memory=[ids, masks],
            frame=frame,
            table=enqueue_padding(staging, [frame], device, self._num_trees),
        )
