"""The kernels of a launch, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
from torch import Tensor

from manyhop.graph import EdgeType
from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.hops.edges import MOST, count, emit, fetch, pick
from manyhop.sampling.gpu.kernels.hops.nodes import drop, enter, finish, plant
from manyhop.sampling.gpu.kernels.hops.wide import pick_wide, spread
from manyhop.sampling.gpu.kernels.tables import OVERLAPS
from manyhop.sampling.gpu.launch.memory import DeviceMemory, Extent, HostMemory, tiles
from manyhop.sampling.gpu.launch.plan import Capacity, Plan, Shape
from manyhop.sampling.gpu.launch.recording import Ahead

# Items (nodes, edges) per program, and warps: as measured on an H200.
SEED_TILE = 128
COUNT_TILE = 128
PICK_WARPS = 1  # of 32 items, one per thread
SPREAD_TILE = 256
WIDE_TILE = 128
FETCH_TILE, FETCH_WARPS = 64, 1
ENTER_TILE, ENTER_WARPS = 64, 1
EMIT_TILE, EMIT_WARPS = 256, 4
FINISH_TILE, FINISH_WARPS = 256, 2

# Programs of a kernel that loops over tiles: a few per processor.
PROGRAMS = 132 * 16
ENTER_PROGRAMS = 132 * 256

LAUNCH: dict[str, Any] = {"launch_pdl": True} if OVERLAPS.value else {}

count, drop, emit, enter, fetch = map(Ahead, (count, drop, emit, enter, fetch))
finish, pick, pick_wide, plant, spread = map(Ahead, (finish, pick, pick_wide, plant, spread))


class KernelSequence:
    """Enqueues the kernels of a launch on the current stream.

    Raises:
        CapacityError: keys and positions do not fit into an entry of the hash table.
    """

    compiles_ahead = True
    """Whether all kernels are launched through :class:`Ahead`."""

    def __init__(self, plan: Plan, shape: Shape, capacity: Capacity) -> None:
        self.plan, self.shape, self.capacity = plan, shape, capacity
        self.extent = extent = Extent(plan, shape, capacity)
        smallest = min(SEED_TILE, COUNT_TILE)
        pitch = max(
            tiles(capacity.edges[-1].max(initial=0), EMIT_TILE), tiles(capacity.nodes[-1].max(initial=0), smallest)
        )
        self.memory = DeviceMemory.allocate(plan, shape, capacity, extent, pitch)
        self.host = HostMemory(plan, shape, extent)
        self._counted = self.memory.tables, self.memory.edges, self.host.reports
        """Where hops count their edges."""
        self._range = {
            "REPLACE": plan.replace, "WEIGHTED": plan.spec.weighted, "TIMED": plan.timed, "WINDOW": shape.window,
        }  # fmt: skip
        self._fetches = bool(plan.edges[:, t.WINDOWS.value].any())

    def edge_weights(self, segments: Sequence[int], num_edges: Sequence[int]) -> dict[EdgeType, Tensor]:
        """Return the weights of the sampled edges of a batch, by edge type.

        Args:
            segments: segments of the batch.
            num_edges: ``[num_segments]``: edges of each segment of the launch.
        """
        base, weight = self.extent.edge_base, self.memory.edges.weight
        return {
            edge_type: weight[base[r] : base[r] + num_edges[r]].clone()
            for edge_type, r in zip(self.plan.edge_types, segments, strict=True)
        }

    def run(self) -> None:
        """Sample the batches of the descriptor."""
        self._plant()
        for hop in range(self.plan.num_hops if self.extent.num_segments else 0):
            if not self.plan.counts_ahead:
                self._count(hop)
            self._pick(hop)
            if self.shape.exclude:
                self._drop(hop)
            if self._fetches:
                self._fetch(hop)
            self._enter(hop)
            self._emit(hop)

    def write(self, out: Tensor) -> None:
        """Write the results of a launch.

        Args:
            out: ``[num_allocations] int64``: addresses of the results.
        """
        memory, extent, capacity = self.memory, self.extent, self.capacity
        most = max(capacity.nodes.max(initial=0), capacity.edges.max(initial=0))
        grid = (
            min(tiles(most, FINISH_TILE), self._share(PROGRAMS)),
            max(extent.num_segments + extent.num_type_ranges, 1),
        )
        finish[grid](
            out, memory.tables, memory.seeds, memory.nodes, memory.edges, memory.hash_table,
            self.plan.num_hops, extent.num_type_ranges, extent.num_segments, self.shape.num_batches,
            DISJOINT=self.plan.spec.disjoint, T=FINISH_TILE, num_warps=FINISH_WARPS, **LAUNCH,
        )  # fmt: skip

    def run_and_write(self) -> None:
        """Sample, and write the results to the addresses that the first kernel has read."""
        self.run()
        self.write(self.memory.seeds.result_addresses)

    def _plant(self) -> None:
        memory, extent, host, plan = self.memory, self.extent, self.host, self.plan
        most = max(self.shape.seeds, default=0)
        plant[(tiles(most, SEED_TILE) + 1, max(extent.num_type_ranges, 1))](
            host.descriptor, host.out, memory.tables, memory.seeds, memory.nodes, memory.frontier, memory.edges,
            memory.sums, host.reports, memory.hash_table, memory.mask, plan.num_hops, extent.num_type_ranges,
            extent.num_segments, self.shape.num_batches, len(plan.types), memory.pitch, host.descriptor_size,
            most if extent.num_type_ranges == 1 else 0, len(host.out),
            NEXT=plan.counts_ahead and plan.num_hops > 0, DISJOINT=plan.spec.disjoint, EXCLUDE=self.shape.exclude,
            B=SEED_TILE, **self._range, **LAUNCH,
        )  # fmt: skip

    def _count(self, hop: int) -> None:
        memory, extent = self.memory, self.extent
        tables, edges, reports = self._counted
        count[(tiles(self.capacity.nodes[hop].max(), COUNT_TILE), extent.num_segments)](
            tables, memory.seeds, memory.nodes, memory.frontier, edges, memory.sums, reports,
            hop, extent.num_type_ranges, extent.num_segments, memory.pitch,
            EXPAND_ALL=self.plan.spec.expand == "all", **self._range, B=COUNT_TILE, **LAUNCH,
        )  # fmt: skip

    def _pick(self, hop: int) -> None:
        memory, extent = self.memory, self.extent
        plan, spec = self.plan, self.plan.spec
        narrow = (plan.fanouts[hop] > 0) & (plan.fanouts[hop] <= MOST.value)
        where = (hop, extent.num_type_ranges, extent.num_segments)
        expand_all = spec.expand == "all"
        mode = {"REPLACE": plan.replace, "WEIGHTED": spec.weighted, "TIMED": plan.timed, "EXPAND_ALL": expand_all}
        keyed = {"DISJOINT": spec.disjoint, "COPIES": not spec.disjoint and (hop == 0 or expand_all)}
        picking = (
            memory.tables, memory.seeds, memory.nodes, memory.frontier, memory.edges, memory.hash_table, memory.mask,
        )  # fmt: skip
        most_nodes = self.capacity.nodes[hop].max()
        if narrow.any():
            largest = int(plan.fanouts[hop].max(where=narrow, initial=1))
            width = triton.next_power_of_2(largest)
            tile = 32 * PICK_WARPS
            pick[(min(tiles(most_nodes, tile), self._share(PROGRAMS)), extent.num_segments)](
                *picking, *where, K=largest, KP=width, LAST=plan.last, B=tile, **mode, **keyed,
                num_warps=PICK_WARPS, **LAUNCH,
            )  # fmt: skip
        if (narrow | (plan.fanouts[hop] == 0)).all():
            return
        programs = min(tiles(self.capacity.edges[hop + 1].max(), SPREAD_TILE), self._share(PROGRAMS))
        spread[(programs, extent.num_segments)](
            memory.tables, memory.nodes, memory.frontier, memory.edges, *where,
            LAST=plan.last, T=SPREAD_TILE, **mode, **LAUNCH,
        )  # fmt: skip
        if not plan.last and (
            spec.weighted or plan.fanouts[hop].max() > MOST.value
        ):  # otherwise every node picks its whole range
            pick_wide[(min(tiles(most_nodes, 1), self._share(PROGRAMS)), extent.num_segments)](
                *picking, *where, T=WIDE_TILE, **mode, **keyed, **LAUNCH
            )

    def _drop(self, hop: int) -> None:
        memory, num_segments = self.memory, self.extent.num_segments
        drop[(tiles(self.capacity.edges[hop + 1].max(), EMIT_TILE), num_segments)](
            memory.tables, memory.seeds, memory.edges, memory.sums, self.host.reports, hop, num_segments, memory.pitch,
            WEIGHTS=self.plan.weighs, T=EMIT_TILE, num_warps=EMIT_WARPS, **LAUNCH,
        )  # fmt: skip

    def _fetch(self, hop: int) -> None:
        memory, num_segments = self.memory, self.extent.num_segments
        programs = min(tiles(self.capacity.edges[hop + 1].max(), FETCH_TILE), self._share(PROGRAMS))
        fetch[(programs, num_segments)](
            memory.tables, memory.edges, hop, num_segments, T=FETCH_TILE, num_warps=FETCH_WARPS, **LAUNCH
        )

    def _enter(self, hop: int) -> None:
        memory, num_segments = self.memory, self.extent.num_segments
        programs = min(tiles(self.capacity.edges[hop + 1].max(), ENTER_TILE), self._share(ENTER_PROGRAMS))
        enter[(programs, num_segments)](
            memory.tables, memory.seeds, memory.nodes, memory.edges, memory.sums, self.host.reports, memory.hash_table,
            memory.mask, hop, num_segments, len(self.plan.types), memory.pitch,
            DISJOINT=self.plan.spec.disjoint, EXCLUDE=self.shape.exclude, FETCHED=self._fetches, T=ENTER_TILE,
            num_warps=ENTER_WARPS, **LAUNCH,
        )  # fmt: skip

    def _emit(self, hop: int) -> None:
        memory, extent, plan = self.memory, self.extent, self.plan
        programs = tiles(self.capacity.edges[hop + 1].max(), EMIT_TILE)
        emit[(programs * extent.num_segments,)](
            memory.tables, memory.seeds, memory.nodes, memory.frontier, memory.edges, memory.sums, self.host.reports,
            memory.hash_table, hop, extent.num_type_ranges, extent.num_segments, len(plan.types), memory.pitch,
            programs, CHAIN=triton.next_power_of_2(extent.chain), MORE=hop + 1 < plan.num_hops,
            NEXT=plan.counts_ahead and hop + 1 < plan.num_hops, DISJOINT=plan.spec.disjoint, **self._range, T=EMIT_TILE,
            num_warps=EMIT_WARPS, **LAUNCH,
        )  # fmt: skip

    def _share(self, programs: int) -> int:
        """Return how many of the programs of a kernel each segment gets."""
        return max(programs // max(self.extent.num_segments, 1), 8)
