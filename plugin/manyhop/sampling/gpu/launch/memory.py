"""The memory that launches work in, by purpose: nodes, edges, the hash table, what the host reads and writes.

Kernels take its NamedTuples as they are. These hold tensors only: triton compiles another form of a kernel for each
kind of integer in a tuple, whatever ``do_not_specialize`` names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import triton
from torch import Tensor

from manyhop.errors import CapacityError
from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.hops.finish import SHARING
from manyhop.sampling.gpu.launch.capacity import Capacity, Ints, Shape
from manyhop.sampling.gpu.launch.plan import Plan
from manyhop.sampling.gpu.launch.static import bits_of_entries, on_device, regions_of, rows_of

# Slots of the hash table per node: many while the table stays well inside the L2 cache, as few as needed beyond.
SPARSE, DENSE = 8, 2
SPARSE_TABLE = 1 << 22

MOST_SLOTS = 1 << 30  # what is kept of a slot has 30 bits
MOST_ROWS = (1 << 16) - 1  # a grid has no more programs in its second dimension


class Extent:
    """How the batches of a launch are laid out: its rows and regions, and how much memory they need.

    Args:
        plan: the graph and the spec.
        shape: how many batches there are at most, of how many seeds.
        capacity: room for each batch.

    Raises:
        CapacityError: there are too many types or nodes, or keys and positions do not fit into an entry of the hash
            table.
    """

    def __init__(self, plan: Plan, shape: Shape, capacity: Capacity) -> None:
        num_batches, node_room, edge_room = shape.num_batches, capacity.nodes[-1], capacity.edges[-1]
        self.num_regions, self.num_rows = num_batches * len(plan.num_nodes), num_batches * len(plan.edges)
        self.num_nodes, self.num_edges = num_batches * int(node_room.sum()), num_batches * int(edge_room.sum())
        self.num_asking = int(node_room[plan.dst].sum()) * num_batches
        self.num_seeds = num_batches * sum(shape.seeds)
        if self.num_rows + self.num_regions > MOST_ROWS or DENSE * self.num_nodes > MOST_SLOTS:
            raise CapacityError(
                f"Expected at most {MOST_ROWS} node and edge types, over all batches, and {MOST_SLOTS // DENSE} nodes "
                f"in a launch, got {self.num_rows + self.num_regions} and {self.num_nodes}. "
                "Use smaller fan-outs or batches."
            )
        self.pos_bits, self.key_bits, self.stamp_bits = bits_of_entries(plan, shape, self.num_nodes, self.num_edges)
        self.regions = regions_of(plan, capacity, num_batches)
        self.rows, self.row_of, self.chain = rows_of(plan, capacity, self.regions)
        self.edge_types: Ints = self.rows[:, t.EDGE_TYPE.value]
        """Of each row."""
        self.edge_base: list[int] = self.rows[:, t.EDGE_BASE.value].tolist()
        """Where the edges of each row begin."""
        self.edge_room: list[int] = edge_room[self.edge_types].tolist()
        """Room for the edges of each row."""
        self.node_room: list[int] = np.tile(node_room, num_batches).tolist()
        """Room for the nodes of each region."""


class Tables(NamedTuple):
    """What is the same for all launches."""

    rows: Tensor
    regions: Tensor
    fanouts: Tensor
    """``[num_hops, num_rows]``."""
    node_cap: Tensor
    """``[num_hops + 1, num_regions]``: room for nodes after each hop."""
    edge_cap: Tensor
    """``[num_hops + 1, num_rows]``: room for edges after each hop."""
    bits: Tensor
    """``[4]``: of nodes, positions, keys, windows."""


class Seeds(NamedTuple):
    """What the first kernel of a launch hands on."""

    time_max: Tensor
    time_min: Tensor
    keys: Tensor
    """``[num_hops, num_rows]``: of random numbers."""
    first_tree: Tensor
    """``[num_batches]``."""
    stamps: Tensor
    excluded: Tensor
    """``[num_rows, 2]``: address and number of the ids of excluded edges."""
    near_out: Tensor
    """Addresses of the memory for results, as the first kernel read them, for all programs of the last."""


class Nodes(NamedTuple):
    """The nodes of all regions."""

    ids: Tensor
    tree: Tensor
    counts: Tensor
    """``[num_hops + 1, num_regions]``: after each hop."""


class Frontier(NamedTuple):
    """The nodes that a hop starts from, of all rows."""

    start: Tensor
    """Where the range of each begins that edges are picked from."""
    degree: Tensor
    """Its length."""
    offset: Tensor
    """How many edges the nodes before pick."""


class Edges(NamedTuple):
    """The edges of all rows."""

    counts: Tensor
    """``[num_hops + 1, num_rows]``: after each hop."""
    position: Tensor
    column: Tensor
    slots: Tensor
    """Of the hash table."""
    weight: Tensor
    """``float32``, where edges have weights."""


class Sums(NamedTuple):
    """Running sums that programs of a kernel hand on to each other, ``[num_rows, pitch]`` for each kernel."""

    of_count: Tensor
    of_emit: Tensor
    of_drop: Tensor


class Reports(NamedTuple):
    """What kernels report to the host, in pinned memory."""

    nodes: Tensor
    """``[num_hops + 1, num_regions]``: after each hop; so are the others."""
    edges: Tensor
    """``[num_hops + 1, num_rows]``."""
    kept: Tensor
    """``[num_hops + 1, num_rows]``: edges that are left, where some are excluded."""
    failed: Tensor
    """``[FAILED_COLUMNS]``."""


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of a launch on the device."""

    tables: Tables
    seeds: Seeds
    nodes: Nodes
    frontier: Frontier
    edges: Edges
    sums: Sums
    pitch: int
    """The most programs of a row."""
    hash_table: Tensor
    """From nodes to local ids, see `kernels.hash`."""
    mask: int
    """Number of its slots - 1."""

    @classmethod
    def allocate(cls, plan: Plan, shape: Shape, capacity: Capacity, extent: Extent, pitch: int) -> DeviceMemory:
        """Allocate it.

        Args:
            plan: the graph and the spec.
            shape: of the launches.
            capacity: room for each batch.
            extent: of the launches.
            pitch: the most programs of a row.
        """
        device, num_hops, num_rows = plan.device, plan.num_hops, extent.num_rows

        def ints(n: int) -> Tensor:
            return torch.zeros(max(n, 1), dtype=torch.int64, device=device)

        def shorts(n: int) -> Tensor:
            return torch.zeros(max(n, 1), dtype=torch.int32, device=device)

        static = [
            extent.rows,
            extent.regions,
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
            tables=Tables(*on_device(static, device)),
            seeds=Seeds(
                time_max=ints(timed),
                time_min=ints(timed),
                keys=ints(num_hops * num_rows),
                first_tree=ints(shape.num_batches),
                stamps=ints(1),
                excluded=ints(2 * num_rows if shape.exclude else 0),
                near_out=ints(num_outs(shape)),
            ),
            nodes=Nodes(
                ids=ints(extent.num_nodes),
                tree=shorts(extent.num_nodes if plan.spec.disjoint else 1),
                counts=ints((num_hops + 1) * extent.num_regions),
            ),
            frontier=Frontier(*(ints(extent.num_asking) for _ in range(3))),
            edges=Edges(
                counts=ints((num_hops + 1) * num_rows),
                position=ints(extent.num_edges),
                column=shorts(extent.num_edges),
                slots=shorts(extent.num_edges),
                weight=weights,
            ),
            sums=Sums(
                of_count=ints(num_rows * pitch),
                of_emit=ints(num_rows * pitch),
                of_drop=ints(num_rows * pitch if shape.exclude else 1),
            ),
            pitch=pitch,
            hash_table=ints(num_slots + 1),
            mask=num_slots - 1,
        )


class HostMemory:
    """Pinned memory in which the host tells a launch its batches, and the launch reports to the host.

    Args:
        plan: the graph and the spec.
        shape: of the launches.
        extent: of the launches.
    """

    def __init__(self, plan: Plan, shape: Shape, extent: Extent) -> None:
        pin, hops, num_rows = plan.device.type == "cuda", plan.num_hops + 1, extent.num_rows

        def pinned(n: int) -> Tensor:
            return torch.zeros(max(n, 1), dtype=torch.int64, pin_memory=pin)

        self.excluded_at = (
            t.BATCHES.value + shape.num_batches * t.BATCH_COLUMNS.value + extent.num_regions * t.SEED_COLUMNS.value
        )
        """Where the head has addresses and numbers of excluded edges."""
        self.head_size = self.excluded_at + (2 * num_rows if shape.exclude else 0)
        self.head = pinned(self.head_size + 3 * extent.num_seeds)
        """What launches are told, see `kernels.tables`, and behind it seeds and times from the host."""
        self.head_address = self.head.data_ptr()
        self.reports = reports = Reports(
            nodes=pinned(hops * extent.num_regions),
            edges=pinned(hops * num_rows),
            kept=pinned(hops * num_rows if shape.exclude else 1),
            failed=pinned(t.FAILED_COLUMNS.value),
        )
        # Ends by themselves have two of them in turns: that of the launch before may not have run yet.
        self.out, *self.outs = [pinned(num_outs(shape)) for _ in range(3)]
        """Addresses of the memory for results."""

        # The same as numpy sees it.
        self.head_array, self.failed_array = self.head.numpy(), reports.failed.numpy()
        self.node_counts = reports.nodes.numpy().reshape(hops, extent.num_regions)
        """``[num_hops + 1, num_regions]``."""
        self.edge_counts = reports.edges.numpy()[: hops * num_rows].reshape(hops, num_rows)
        """``[num_hops + 1, num_rows]``."""
        kept = reports.kept.numpy()[: hops * num_rows].reshape(hops, num_rows) if shape.exclude else None
        self.result_counts = self.edge_counts if kept is None else kept
        """``[num_hops + 1, num_rows]``: edges of the samples."""
        self.out_array, self.out_arrays = self.out.numpy(), [out.numpy() for out in self.outs]


def num_outs(shape: Shape) -> int:
    """How many allocations the results of a launch are in."""
    return tiles(shape.num_batches, SHARING.value)


def tiles(n: int, size: int) -> int:
    """How many programs work on ``n`` things, at least one."""
    return max(-(-int(n) // size), 1)
