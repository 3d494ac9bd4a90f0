"""Samples of fixed sizes on a GPU: one launch for multiple samples, and one for the rows of their padding."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import EdgeType, NodeType
from manyhop.loading.pipeline.block_sizes import SPARE, Blocks, Counts, Filled, PadSizes, padding_ends
from manyhop.loading.pipeline.gpu import kernels as k
from manyhop.sampling import SampledSubgraph
from manyhop.system.triton_launch import Kernel, as_current

_SIZE, _SOURCE, _TARGET, _IN, _BEGINS = (c.value for c in (k.SIZE, k.SOURCE, k.TARGET, k.IN, k.BEGINS))
_TILE: Final = 1024
_MOST_PROGRAMS: Final = 64  # per job: a larger number is hardly faster
_BYTES_OF_PROGRAM: Final = 1 << 18  # of a tensor, mostly without padding
_CLEARED: Final = (4, 16)  # tensors of a launch; a kernel each


class _MemoryLayout(NamedTuple):
    """The memory layout of the padded tensors of a sample."""

    id_sizes: list[int]
    """Entries of the existing tensors: node and tree of each node type, then row, column and id of each edge type."""
    mask_sizes: list[int]
    """Entries of the mask of each type."""
    places: list[list[int]]
    """Offsets of each type in bytes: of its three tensors, and of the mask."""
    num_ids: int
    num_masks: int


class GPUFrame:
    """Tables for samples of the same fixed sizes, for kernels."""

    def __init__(self, sizes: PadSizes) -> None:
        self.sizes = sizes
        self.blocks = [*sizes.nodes.values(), *sizes.edges.values()]
        self.num_blocks = max((len(own) for own in self.blocks), default=1)
        kinds: list[NodeType | EdgeType] = [*sizes.nodes, *sizes.edges]
        self.number = {kind: i for i, kind in enumerate(kinds)}
        """Index of the job of each node or edge type."""
        self.tiles = -(-max((sum(own) for own in self.blocks), default=0) // _TILE)
        self.jobs = self._jobs()
        width = self.jobs.shape[1]
        self.places = [(kind, 8 * width * i) for kind, i in self.number.items()]
        """Node or edge types, and the offsets of their jobs in bytes."""
        self._layouts: dict[Any, _MemoryLayout] = {}

    def _jobs(self) -> npt.NDArray[np.int64]:
        """Return ``[num_jobs, width]``: arguments of the kernels that are equal for all samples."""
        sizes, num_blocks = self.sizes, self.num_blocks
        jobs = np.zeros((len(self.blocks), _BEGINS + 4 * num_blocks + 2), dtype=np.int64)
        for row, own in zip(jobs, self.blocks, strict=True):
            row[_SIZE] = sum(own)
            row[_BEGINS + num_blocks + 1 : _BEGINS + 2 * num_blocks + 2] = begins_of(own, num_blocks)
        first = {t: list(accumulate(own, initial=0)) for t, own in sizes.nodes.items()}
        for e, hops in sizes.edges.items():
            i = self.number[e]
            jobs[i, [_SOURCE, _TARGET]] = i - self.number[e[0]], i - self.number[e[2]]
            spare = jobs[i, -2 * num_blocks :].reshape(2, num_blocks)
            for hop in range(len(hops)):
                ends = padding_ends(e, hop, len(sizes.nodes[e[0]]))
                spare[:, hop] = [first[t][block + 1] - SPARE for t, block in ends]
        return jobs

    def layout(self, sample: SampledSubgraph) -> _MemoryLayout:
        """Return the memory layout for samples with the same optional tensors."""
        ids = sample.edge_id
        key = sample.tree is None, *[ids[e] is None for e in self.sizes.edges]
        layout = self._layouts.get(key)
        if layout is None:
            no_tree, *no_ids = key
            present = [2 - no_tree] * len(self.sizes.nodes) + [3 - no_id for no_id in no_ids]
            lengths = [sum(own) for own in self.blocks]
            id_sizes = [n for n, times in zip(lengths, present, strict=True) for _ in range(times)]
            ends, masks = list(accumulate(id_sizes, initial=0)), accumulate(lengths, initial=0)
            firsts = accumulate(present, initial=0)
            places = [
                [*[8 * ends[first + min(i, times)] for i in range(3)], mask]
                for first, times, mask in zip(firsts, present, masks, strict=False)
            ]
            layout = self._layouts[key] = _MemoryLayout(id_sizes, lengths, places, sum(id_sizes), sum(lengths))
        return layout


def prepare_padding(device: torch.device) -> None:
    """Compile the kernels for a GPU, or load them from the cache."""
    for kernel in (_pad(), *map(_clear, _CLEARED)):
        kernel.prepare(device)


def begins_of(counts: Blocks, num_blocks: int) -> list[int]:
    """Return the offsets of ``num_blocks`` blocks, empty ones at the end included, and the end of the last one."""
    begins = list(accumulate(counts, initial=0))
    return begins if len(counts) == num_blocks else begins + begins[-1:] * (num_blocks - len(counts))


class Jobs(NamedTuple):
    """The jobs of kernels for a sample."""

    table: Tensor
    """The table of all samples of a launch."""
    device: int
    """The number of its GPU; -1: a CPU."""
    addresses: dict[NodeType | EdgeType, int]
    """Addresses of the jobs of the nodes or edges of each type."""
    num_blocks: int
    """Number of blocks of a job."""


def fill(
    frames: Sequence[GPUFrame],
    samples: Sequence[SampledSubgraph],
    counts: Sequence[Counts],
    device: torch.device,
    num_trees: int,
) -> list[Filled]:
    """Return the padded samples and the masks of their nodes and edges; enqueued on the current stream.

    Args:
        frames: frame of each sample; they differ only in their sizes.
        device: the GPU; a CPU if triton interprets its kernels.
        num_trees: the tree of padding nodes.

    Raises:
        InputError: the nodes or edges of a sample differ from its counts.
    """
    layouts = [frame.layout(sample) for frame, sample in zip(frames, samples, strict=True)]
    ids = torch.empty(sum([layout.num_ids for layout in layouts]), dtype=torch.int64, device=device)
    masks = torch.empty(sum([layout.num_masks for layout in layouts]), dtype=torch.bool, device=device)
    # Unlike results of split(), these are not views: a change of one does not count as a change of all.
    id_of = iter(ids.unsafe_split_with_sizes([n for layout in layouts for n in layout.id_sizes]))
    mask_of = iter(masks.unsafe_split_with_sizes([n for layout in layouts for n in layout.mask_sizes]))
    at, mask_at, num_blocks = ids.data_ptr(), masks.data_ptr(), frames[0].num_blocks
    added: list[int] = []
    alive: list[Tensor] = []  # until the kernel is enqueued
    made: list[tuple[SampledSubgraph, dict[NodeType, Tensor], dict[EdgeType, Tensor]]] = []
    for frame, sample, own, layout in zip(frames, samples, counts, layouts, strict=True):
        places, trees, edge_ids, sizes = iter(layout.places), sample.tree, sample.edge_id, frame.sizes
        node, tree, row, col = dict[Any, Tensor](), dict[Any, Tensor](), dict[Any, Tensor](), dict[Any, Tensor]()
        edge_id: dict[EdgeType, Tensor | None] = {}
        for t in sizes.nodes:
            begins, place = begins_of(own.nodes[t], num_blocks), next(places)
            n = begins[-1]
            node[t] = next(id_of)
            if trees is None:
                added += (_address(sample.node[t], n, t, alive), 0, 0, at + place[0], 0, 0)
            else:
                tree[t] = next(id_of)
                added += (_address(sample.node[t], n, t, alive), _address(trees[t], n, t, alive), 0)
                added += (at + place[0], at + place[1], 0)
            added += (mask_at + place[3], *begins)
        for e in sizes.edges:
            begins, place, ids_of = begins_of(own.edges[e], num_blocks), next(places), edge_ids[e]
            n = begins[-1]
            added += (_address(sample.row[e], n, e, alive), _address(sample.col[e], n, e, alive))
            row[e], col[e] = next(id_of), next(id_of)
            if ids_of is None:
                edge_id[e] = None
                added += (0, at + place[0], at + place[1], 0)
            else:
                edge_id[e] = next(id_of)
                added += (_address(ids_of, n, e, alive), at + place[0], at + place[1], at + place[2])
            added += (mask_at + place[3], *begins)
        padded = SampledSubgraph(
            node=node,
            row=row,
            col=col,
            edge_id=edge_id,
            tree=None if trees is None else tree,
            num_sampled_nodes=None if sample.num_sampled_nodes is None else sizes.lists_of_nodes(),
            num_sampled_edges=None if sample.num_sampled_edges is None else sizes.lists_of_edges(),
        )
        made.append((padded, {t: next(mask_of) for t in node}, {e: next(mask_of) for e in row}))
        at += 8 * layout.num_ids
        mask_at += layout.num_masks
    shape = sum([len(frame.jobs) for frame in frames]), frames[0].jobs.shape[1]
    staging = torch.empty(shape, dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")
    jobs = staging.numpy()
    np.concatenate([frame.jobs for frame in frames], out=jobs)
    jobs[:, _IN : _BEGINS + num_blocks + 1] = np.array(added, dtype=np.int64).reshape(len(jobs), -1)
    programs = min(max([frame.tiles for frame in frames]), _MOST_PROGRAMS)
    with as_current(device):
        table = staging.to(device, non_blocking=True)
        if programs:
            _pad()(device, programs * len(jobs), table.data_ptr(), num_blocks, programs, num_trees)
    filled: list[Filled] = []
    begin, number = table.data_ptr(), table.get_device()
    for parts, frame in zip(made, frames, strict=True):
        addresses = {kind: begin + place for kind, place in frame.places}
        filled.append((*parts, Jobs(table, number, addresses, num_blocks)))
        begin += 8 * frame.jobs.size
    return filled


def _address(values: Tensor, count: int, kind: NodeType | EdgeType, alive: list[Tensor]) -> int:
    """Return the address of a tensor for the kernel. A copy of an unreadable one is appended to ``alive``."""
    if values.numel() != count:
        raise InputError(
            f"Expected {count} nodes or edges of type {kind!r}, the sum of the sample's counts per hop, got "
            f"{values.numel()}. Change the counts in transform_sampler_output as well."
        )
    if values.dtype is not torch.int64 or not values.is_contiguous():
        values = values.long().contiguous()
        alive.append(values)
    return values.data_ptr()


def clear(tensors: Sequence[tuple[Tensor, int, int]], num_blocks: int) -> None:
    """Write zeros over the rows of padding, on the current stream: up to 16 tensors per launch.

    Args:
        tensors: contiguous tensors on the GPU, each with the address of the job (of ``Jobs``) of its nodes or edges,
            and the block of the rows (-1: all).
        num_blocks: number of blocks of these jobs.
    """
    filled = [(value.data_ptr(), value.nbytes // value.size(0), *where) for value, *where in tensors if value.numel()]
    if not filled:
        return
    device, most = tensors[0][0].device, max([value.nbytes for value, _, _ in tensors])
    programs = min(-(-most // _BYTES_OF_PROGRAM), _MOST_PROGRAMS)
    with as_current(device):
        for begin in range(0, len(filled), _CLEARED[-1]):
            some = filled[begin : begin + _CLEARED[-1]]
            size = next(n for n in _CLEARED if n >= len(some))
            calls = [number for call in some for number in call] + [0] * (k.FIELDS.value * (size - len(some)))
            _clear(size)(device, programs * len(some), tuple(calls), num_blocks, programs)


@functools.cache
def _pad() -> Kernel:
    return Kernel(k.pad_samples, (SPARE, _TILE))


@functools.cache
def _clear(size: int) -> Kernel:
    return Kernel(k.clear_rows, (size, _TILE), calls=size * k.FIELDS.value)
