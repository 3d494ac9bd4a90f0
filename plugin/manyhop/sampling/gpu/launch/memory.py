"""The working memory of launches, by purpose: nodes, edges, the hash table, and the memory of the host.

Kernels take its NamedTuples as arguments. These hold tensors only: triton specializes kernels on the integers in a
tuple, even those that ``do_not_specialize`` names.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import triton
from torch import Tensor

from manyhop.errors import CapacityError
from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.hops.nodes import SHARING
from manyhop.sampling.gpu.launch.plan import (
    Capacity,
    Ints,
    Plan,
    Shape,
    bits_of_entries,
    make_segments,
    make_type_ranges,
)
from manyhop.sampling.gpu.transfer import upload

# Slots of the hash table per node: many while the table is well inside the L2 cache, otherwise as few as possible.
SPARSE, DENSE = 8, 2
SPARSE_TABLE = 1 << 22

MOST_SLOTS = 1 << 30  # edges store slot numbers in 30 bits
MOST_SEGMENTS = (1 << 16) - 1  # CUDA's limit for the second dimension of a grid


class Extent:
    """Layout of the batches of a launch: its segments and type ranges (see `kernels.tables`), and their memory.

    Raises:
        CapacityError: there are too many types or nodes, or keys and positions do not fit into an entry of the hash
            table.
    """

    def __init__(self, plan: Plan, shape: Shape, capacity: Capacity) -> None:
        num_batches, node_capacity, edge_capacity = shape.num_batches, capacity.nodes[-1], capacity.edges[-1]
        self.num_type_ranges, self.num_segments = num_batches * len(plan.num_nodes), num_batches * len(plan.edges)
        self.num_nodes, self.num_edges = num_batches * int(node_capacity.sum()), num_batches * int(edge_capacity.sum())
        self.num_frontier = int(node_capacity[plan.dst].sum()) * num_batches
        self.num_seeds = num_batches * sum(shape.seeds)
        if self.num_segments + self.num_type_ranges > MOST_SEGMENTS or DENSE * self.num_nodes > MOST_SLOTS:
            raise CapacityError(
                f"Expected at most {MOST_SEGMENTS} node and edge types, over all batches, and {MOST_SLOTS // DENSE} "
                f"nodes in a launch, got {self.num_segments + self.num_type_ranges} and {self.num_nodes}. "
                "Use smaller fanouts or batches."
            )
        self.pos_bits, self.key_bits, self.stamp_bits = bits_of_entries(plan, shape, self.num_nodes, self.num_edges)
        self.type_ranges = make_type_ranges(plan, capacity, num_batches)
        self.segments, self.segment_of, self.chain = make_segments(plan, capacity, self.type_ranges)
        self.edge_types: Ints = self.segments[:, t.EDGE_TYPE.value]
        """``[num_segments]``: index of the edge type of each segment."""
        self.edge_base: list[int] = self.segments[:, t.EDGE_BASE.value].tolist()
        """``[num_segments]``: offset of the edges of each segment."""
        self.edge_capacity: list[int] = edge_capacity[self.edge_types].tolist()
        """``[num_segments]``: edges that fit into each segment."""
        self.node_capacity: list[int] = np.tile(node_capacity, num_batches).tolist()
        """``[num_type_ranges]``: nodes that fit into each type range."""


class Tables(NamedTuple):
    """Tables that all launches of a workspace share."""

    segments: Tensor
    type_ranges: Tensor
    fanouts: Tensor
    """``[num_hops, num_segments]``."""
    node_cap: Tensor
    """``[num_hops + 1, num_type_ranges]``: capacity for nodes after each hop."""
    edge_cap: Tensor
    """``[num_hops + 1, num_segments]``: capacity for edges after each hop."""
    bits: Tensor
    """``[4]``: bits of a node id, a position, a key, a window."""


class Seeds(NamedTuple):
    """Output of the first kernel of a launch: its descriptor, unpacked into device memory."""

    time_max: Tensor
    time_min: Tensor
    keys: Tensor
    """``[num_hops, num_segments]``: keys of the random numbers."""
    first_tree: Tensor
    """``[num_batches]``: seeds of all earlier batches."""
    stamps: Tensor
    excluded: Tensor
    """``[num_segments, 2]``: address and number of the ids of excluded edges."""
    result_addresses: Tensor
    """Device copy of the addresses of the results, which the last kernel reads."""


class Nodes(NamedTuple):
    """The nodes of all type ranges."""

    ids: Tensor
    tree: Tensor
    counts: Tensor
    """``[num_hops + 1, num_type_ranges]``: after each hop."""


class Frontier(NamedTuple):
    """The frontier of a hop: its entries, of all segments."""

    start: Tensor
    """Start of the range of each entry that edges are picked from."""
    degree: Tensor
    """Length of that range."""
    offset: Tensor
    """Number of edges that earlier entries of the segment pick."""


class Edges(NamedTuple):
    """The edges of all segments."""

    counts: Tensor
    """``[num_hops + 1, num_segments]``: after each hop."""
    position: Tensor
    column: Tensor
    slots: Tensor
    """Slot of the neighbour in the hash table, or its local id."""
    weight: Tensor
    """``float32``, where edges have weights."""


class Sums(NamedTuple):
    """States of prefix sums over the programs of a kernel: ``[num_segments, pitch]`` for each kernel that scans."""

    of_count: Tensor
    of_emit: Tensor
    of_drop: Tensor


class Reports(NamedTuple):
    """Counts and failures that kernels report to the host, in pinned memory."""

    nodes: Tensor
    """``[num_hops + 1, num_type_ranges]``: nodes after each hop."""
    edges: Tensor
    """``[num_hops + 1, num_segments]``: edges after each hop."""
    kept: Tensor
    """``[num_hops + 1, num_segments]``: edges after each hop without the excluded ones."""
    failed: Tensor
    """``[FAILED_COLUMNS]``: nonzero for each kind of failure that occurred."""


@dataclass(frozen=True)
class DeviceMemory:
    """The working memory of a launch on the device."""

    tables: Tables
    seeds: Seeds
    nodes: Nodes
    frontier: Frontier
    edges: Edges
    sums: Sums
    pitch: int
    """The most programs of a segment."""
    hash_table: Tensor
    """Maps nodes to local ids, see `kernels.primitives`."""
    mask: int
    """Number of slots of the hash table, minus 1."""

    @classmethod
    def allocate(cls, plan: Plan, shape: Shape, capacity: Capacity, extent: Extent, pitch: int) -> DeviceMemory:
        """Allocate the memory."""
        device, num_hops, num_segments = plan.device, plan.num_hops, extent.num_segments

        def ints(n: int) -> Tensor:
            return torch.zeros(max(n, 1), dtype=torch.int64, device=device)

        def shorts(n: int) -> Tensor:
            return torch.zeros(max(n, 1), dtype=torch.int32, device=device)

        static = [
            extent.segments,
            extent.type_ranges,
            plan.fanouts[:, extent.edge_types],
            np.tile(capacity.nodes, (1, shape.num_batches)),
            capacity.edges[:, extent.edge_types],
            np.array([plan.node_bits, extent.pos_bits, extent.key_bits, plan.window_bits]),
        ]
        timed = extent.num_seeds if plan.timed else 1
        sparse = triton.next_power_of_2(max(SPARSE * extent.num_nodes, 1024))
        dense = triton.next_power_of_2(max(DENSE * extent.num_nodes, 1024))
        num_slots = max(min(sparse, SPARSE_TABLE), dense)
        weights = torch.zeros(extent.num_edges if plan.weighs else 1, dtype=torch.float32, device=device)
        return cls(
            tables=Tables(*upload(static, device)),
            seeds=Seeds(
                time_max=ints(timed),
                time_min=ints(timed),
                keys=ints(num_hops * num_segments),
                first_tree=ints(shape.num_batches),
                stamps=ints(1),
                excluded=ints(2 * num_segments if shape.exclude else 0),
                result_addresses=ints(num_allocations(shape)),
            ),
            nodes=Nodes(
                ids=ints(extent.num_nodes),
                tree=shorts(extent.num_nodes if plan.spec.disjoint else 1),
                counts=ints((num_hops + 1) * extent.num_type_ranges),
            ),
            frontier=Frontier(*(ints(extent.num_frontier) for _ in range(3))),
            edges=Edges(
                counts=ints((num_hops + 1) * num_segments),
                position=ints(extent.num_edges),
                column=shorts(extent.num_edges),
                slots=shorts(extent.num_edges),
                weight=weights,
            ),
            sums=Sums(
                of_count=ints(num_segments * pitch),
                of_emit=ints(num_segments * pitch),
                of_drop=ints(num_segments * pitch if shape.exclude else 1),
            ),
            pitch=pitch,
            hash_table=ints(num_slots + 1),
            mask=num_slots - 1,
        )


class HostMemory:
    """Pinned memory that host and launches share: the descriptor of a launch, and its reports."""

    def __init__(self, plan: Plan, shape: Shape, extent: Extent) -> None:
        pin, hops, num_segments = plan.device.type == "cuda", plan.num_hops + 1, extent.num_segments

        def pinned(n: int) -> Tensor:
            return torch.zeros(max(n, 1), dtype=torch.int64, device="cpu", pin_memory=pin)

        self.excluded_at = (
            t.BATCHES.value + shape.num_batches * t.BATCH_COLUMNS.value + extent.num_type_ranges * t.SEED_COLUMNS.value
        )
        """Offset of the addresses and numbers of excluded edges in the descriptor."""
        self.descriptor_size = self.excluded_at + (2 * num_segments if shape.exclude else 0)
        self.descriptor = pinned(self.descriptor_size + 3 * extent.num_seeds)
        """The descriptor (see `kernels.tables`), followed by the seeds and times that come from the host."""
        self.seeds_address = self.descriptor.data_ptr() + 8 * self.descriptor_size
        """Address of the seeds and times that follow the descriptor."""
        self.reports = reports = Reports(
            nodes=pinned(hops * extent.num_type_ranges),
            edges=pinned(hops * num_segments),
            kept=pinned(hops * num_segments if shape.exclude else 1),
            failed=pinned(t.FAILED_COLUMNS.value),
        )
        # Separate launches of the last kernel alternate between two: the one before may not have run yet.
        self.out, *self.outs = [pinned(num_allocations(shape)) for _ in range(3)]
        """Addresses of the allocations of results."""

        # The same memory as numpy arrays.
        self.descriptor_array, self.failed_array = self.descriptor.numpy(), reports.failed.numpy()
        pack, buffer = struct.Struct(f"{self.descriptor_size}q").pack_into, memoryview(self.descriptor.numpy().data)
        self.write_descriptor: Callable[..., None] = functools.partial(pack, buffer, 0)  # half the time of numpy
        """Write the descriptor, whose integers are the arguments."""
        self.node_counts = reports.nodes.numpy().reshape(hops, extent.num_type_ranges)
        """``[num_hops + 1, num_type_ranges]``: nodes after each hop."""
        self.edge_counts = reports.edges.numpy()[: hops * num_segments].reshape(hops, num_segments)
        """``[num_hops + 1, num_segments]``: edges after each hop."""
        kept = reports.kept.numpy()[: hops * num_segments].reshape(hops, num_segments) if shape.exclude else None
        self.result_counts = self.edge_counts if kept is None else kept
        """``[num_hops + 1, num_segments]``: edges of the samples after each hop."""
        self.out_array, self.out_arrays = self.out.numpy(), [out.numpy() for out in self.outs]


def num_allocations(shape: Shape) -> int:
    """Return the number of allocations that hold the results of a launch."""
    return tiles(shape.num_batches, SHARING.value)


def tiles(n: int, size: int) -> int:
    """Return how many tiles of ``size`` cover ``n`` entries, at least one."""
    return max(-(-int(n) // size), 1)
