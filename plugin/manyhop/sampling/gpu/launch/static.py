"""The static tables of a launch: layout of its type ranges and segments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import CapacityError
from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.launch.capacity import Capacity, Ints, Shape
from manyhop.sampling.gpu.launch.plan import Plan

POSITION_LIMIT = 31  # bits: positions are stored as int32


def make_type_ranges(plan: Plan, capacity: Capacity, num_batches: int) -> Ints:
    """Return the table of type ranges: ``[num_batches, num_node_types, TYPE_RANGE_COLUMNS]``."""
    num_types = len(plan.num_nodes)
    type_ranges = np.zeros((num_batches, num_types, t.TYPE_RANGE_COLUMNS.value), np.int64)
    begins = _begins(np.tile(capacity.nodes[-1], num_batches))
    type_ranges[..., t.NODE_BASE.value] = begins.reshape(num_batches, num_types)
    type_ranges[..., t.NODE_TYPE.value] = np.arange(num_types)
    type_ranges[..., t.OF_BATCH.value] = np.arange(num_batches)[:, None]
    type_ranges[..., t.NUM_NODES.value] = plan.num_nodes
    return type_ranges


def make_segments(plan: Plan, capacity: Capacity, type_ranges: Ints) -> tuple[Ints, list[list[int]], int]:
    """Return the table of segments, the segments of each batch by edge type, and the length of the longest chain.

    The table is ``[num_batches * num_edge_types, SEGMENT_COLUMNS]``, the lists ``[num_batches][num_edge_types]``.
    """
    num_batches, num_types = type_ranges.shape[:2]
    order = sorted(range(len(plan.edges)), key=lambda e: (plan.src[e], e))
    segments = np.zeros((num_batches, len(order), t.SEGMENT_COLUMNS.value), np.int64)
    segment_of: list[list[int]] = []
    src, dst = plan.src[order], plan.dst[order]
    for b in range(num_batches):
        about = segments[b]
        about[:, : plan.edges.shape[1]] = plan.edges[order]
        about[:, t.BATCH.value] = b
        about[:, t.EDGE_TYPE.value] = order
        about[:, t.SRC.value], about[:, t.DST.value] = b * num_types + src, b * num_types + dst
        about[:, t.SRC_TYPE.value] = src
        about[:, t.SRC_BASE.value] = type_ranges[b, src, t.NODE_BASE.value]
        about[:, t.DST_BASE.value] = type_ranges[b, dst, t.NODE_BASE.value]
        first = np.searchsorted(src, src)
        about[:, t.CHAIN.value] = b * len(order) + first
        about[:, t.ENDS_CHAIN.value] = np.searchsorted(src, src, side="right") == np.arange(len(order)) + 1
        segment_of.append([b * len(order) + order.index(e) for e in range(len(order))])
    segments = segments.reshape(-1, t.SEGMENT_COLUMNS.value)
    segments[:, t.EDGE_BASE.value] = _begins(capacity.edges[-1][segments[:, t.EDGE_TYPE.value]])
    segments[:, t.FRONTIER_BASE.value] = _begins(np.tile(capacity.nodes[-1][dst], num_batches))
    return segments, segment_of, int(np.bincount(src, minlength=1).max()) if len(order) else 1


def bits_of_entries(plan: Plan, shape: Shape, total_nodes: int, total_edges: int) -> tuple[int, int, int]:
    """Return how many bits of a hash table entry are for positions, keys and stamps.

    Raises:
        CapacityError: an entry has too few bits.
    """
    scopes = sum(shape.seeds) * shape.num_batches if plan.spec.disjoint else shape.num_batches
    pos_bits = max(total_nodes, total_edges, 2).bit_length() + 1
    key_bits = plan.node_bits + max(scopes * len(plan.num_nodes) - 1, 1).bit_length()
    if pos_bits + key_bits > 62 or pos_bits > POSITION_LIMIT:
        raise CapacityError(
            f"Batches of {total_edges} edges of a graph of {max(plan.num_nodes)} nodes are too large for the GPU "
            f"sampler: an entry of its table has {POSITION_LIMIT} bits for positions and 62 in all, and "
            f"{pos_bits} and {pos_bits + key_bits} are needed. Use smaller fanouts or batches."
        )
    return pos_bits, key_bits, 63 - pos_bits - key_bits


def on_device(tables: Sequence[Ints], device: torch.device) -> Sequence[Tensor]:
    """Copy tables to the device at once; each is flat and aligned to 16 bytes."""
    sizes = [-(-table.size // 2) * 2 for table in tables]
    flat = np.zeros(sum(sizes), np.int64)
    for table, at in zip(tables, _begins(np.array(sizes)), strict=True):
        flat[at : at + table.size] = table.ravel()
    return torch.from_numpy(flat).to(device).split_with_sizes(sizes)


def _begins(sizes: Ints) -> Ints:
    """Return the offsets of contiguous parts of these sizes."""
    return np.cumsum(sizes) - sizes
