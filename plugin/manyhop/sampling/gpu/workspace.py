"""The device memory that a launch works in, and the launch itself."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from manyhop.errors import CapacityError
from manyhop.graph import EdgeType
from manyhop.sampling.gpu.capacity import Capacity, Ints, Shape
from manyhop.sampling.gpu.compiling import Ahead, compile_ahead
from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.count import count
from manyhop.sampling.gpu.kernels.drop import drop
from manyhop.sampling.gpu.kernels.emit import emit
from manyhop.sampling.gpu.kernels.enter import enter
from manyhop.sampling.gpu.kernels.fetch import fetch
from manyhop.sampling.gpu.kernels.finish import SHARING, finish
from manyhop.sampling.gpu.kernels.launch import OVERLAPS
from manyhop.sampling.gpu.kernels.pick import MOST, pick
from manyhop.sampling.gpu.kernels.plant import plant
from manyhop.sampling.gpu.kernels.wide import pick_wide, spread
from manyhop.sampling.gpu.plan import Plan
from manyhop.sampling.gpu.recording import record
from manyhop.sampling.gpu.results import Layout, Told
from manyhop.sampling.gpu.static import bits_of_entries, on_device, regions_of, rows_of

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

# Programs of a kernel whose programs take turns: some per processor.
PROGRAMS = 132 * 16
ENTER_PROGRAMS = 132 * 256

# Slots of the hash table per node: many while the table stays well inside the L2 cache, as few as needed beyond.
SPARSE, DENSE = 8, 2
SPARSE_TABLE = 1 << 22

MOST_SLOTS = 1 << 30  # what is kept of a slot has 30 bits
MOST_ROWS = (1 << 16) - 1  # a grid has no more programs in its second dimension
LAUNCH: dict[str, Any] = {"launch_pdl": True} if OVERLAPS.value else {}

count, drop, emit, enter, fetch = map(Ahead, (count, drop, emit, enter, fetch))
finish, pick, pick_wide, plant, spread = map(Ahead, (finish, pick, pick_wide, plant, spread))


class Workspace:
    """Memory for one launch at a time, and the CUDA graphs that work in it: one for the launch, one for its end.

    Args:
        plan: the graph and the spec.
        shape: how many batches there are at most, of how many seeds.
        capacity: room for each batch.
        stream: where it is used.

    Raises:
        CapacityError: keys and positions do not fit into an entry of the hash table.
    """

    _compiles_ahead = True  # all its kernels are launched through Ahead

    def __init__(self, plan: Plan, shape: Shape, capacity: Capacity, stream: torch.cuda.Stream | None) -> None:
        self.plan, self.shape, self.capacity, self.stream = plan, shape, capacity, stream
        self.stamp, self._turn = 0, 0
        self._range = {
            "REPLACE": plan.replace, "WEIGHTED": plan.spec.weighted, "TIMED": plan.timed, "WINDOW": shape.window,
        }  # fmt: skip
        self._launched: torch.cuda.Event | None = None
        self._fetches = bool(plan.edges[:, t.WINDOWS.value].any())
        self.weighs = False  # whether picked edges have weights
        num_batches, num_hops = shape.num_batches, plan.num_hops
        num_types, num_edge_types = len(plan.num_nodes), len(plan.edges)
        self.num_regions, self.num_rows = num_batches * num_types, num_batches * num_edge_types
        node_room, edge_room = capacity.nodes[-1], capacity.edges[-1]
        self.node_room: list[int] = np.tile(node_room, num_batches).tolist()
        self.num_rooms = num_batches * int(node_room.sum() + edge_room.sum())
        total_nodes = num_batches * int(node_room.sum())
        total_edges = num_batches * int(edge_room.sum())
        if self.num_rows + self.num_regions > MOST_ROWS or DENSE * total_nodes > MOST_SLOTS:
            raise CapacityError(
                f"Expected at most {MOST_ROWS} node and edge types, over all batches, and {MOST_SLOTS // DENSE} nodes "
                f"in a launch, got {self.num_rows + self.num_regions} and {total_nodes}. "
                "Use smaller fan-outs or batches."
            )
        self.pos_bits, self.key_bits, self.stamp_bits = bits_of_entries(plan, shape, total_nodes, total_edges)

        regions = regions_of(plan, capacity, num_batches)
        rows, self.row_of, self.chain = rows_of(plan, capacity, regions)
        self.edge_types = of_row = rows[:, t.EDGE_TYPE.value]
        self.edge_base: list[int] = rows[:, t.EDGE_BASE.value].tolist()
        self.edge_room: list[int] = edge_room[of_row].tolist()
        static = [
            rows,
            regions,
            plan.fanouts[:, of_row],
            np.tile(capacity.nodes, (1, num_batches)),
            capacity.edges[:, of_row],
            np.array([plan.node_bits, self.pos_bits, self.key_bits, plan.window_bits]),
        ]
        device = plan.device
        parts = on_device(static, device)
        self.rows, self.regions, self.fanouts, self.node_cap, self.edge_cap, self.bits = parts

        def ints(n: int) -> Tensor:
            return torch.zeros(max(n, 1), dtype=torch.int64, device=device)

        def shorts(n: int) -> Tensor:
            return torch.zeros(max(n, 1), dtype=torch.int32, device=device)

        def pinned(n: int) -> Tensor:
            return torch.zeros(max(n, 1), dtype=torch.int64, pin_memory=device.type == "cuda")

        seeds = num_batches * sum(shape.seeds)
        items = int(node_room[plan.dst].sum()) * num_batches
        smallest = min(SEED_TILE, COUNT_TILE)
        self.pitch = max(tiles(edge_room.max(initial=0), EMIT_TILE), tiles(node_room.max(initial=0), smallest))
        self.nodes = ints(total_nodes)
        self.tree = shorts(total_nodes if plan.spec.disjoint else 1)
        self.time_max, self.time_min = ints(seeds if plan.timed else 1), ints(seeds if plan.timed else 1)
        self.keys, self.first_tree, self.stamps = ints(num_hops * self.num_rows), ints(num_batches), ints(1)
        self.counts, self.edges = ints((num_hops + 1) * self.num_regions), ints((num_hops + 1) * self.num_rows)
        self.count_state, self.emit_state = ints(self.num_rows * self.pitch), ints(self.num_rows * self.pitch)
        self.item_start, self.item_d, self.item_off = ints(items), ints(items), ints(items)
        self.position, self.column, self.slots = ints(total_edges), shorts(total_edges), shorts(total_edges)
        sparse = triton.next_power_of_2(max(SPARSE * total_nodes, 1024))
        dense = triton.next_power_of_2(max(DENSE * total_nodes, 1024))
        self.table_size = max(min(sparse, SPARSE_TABLE), dense)
        self.table = ints(self.table_size + 1)

        num_excluded = 2 * self.num_rows if shape.exclude else 0
        self.excluded_at = (
            t.BATCHES.value + num_batches * t.BATCH_COLUMNS.value + self.num_regions * t.SEED_COLUMNS.value
        )
        self.head_size = self.excluded_at + num_excluded
        self.excluded, self.drop_state = ints(num_excluded), ints(self.num_rows * self.pitch if shape.exclude else 1)
        self.weight = torch.zeros(1, dtype=torch.float32, device=device)
        self.kept = pinned((num_hops + 1) * self.num_rows if shape.exclude else 1)
        self.head = pinned(self.head_size + 3 * seeds)
        self.failed = pinned(t.FAILED_COLUMNS.value)
        self.told_nodes = pinned((num_hops + 1) * self.num_regions)
        self.told_edges = pinned((num_hops + 1) * self.num_rows)
        # Ends by themselves have two of them in turns: that of the launch before may not have run yet.
        self.out, *self.outs = [pinned(tiles(num_batches, SHARING.value)) for _ in range(3)]
        self.near_out = ints(len(self.out))  # as the first kernel read it, for all programs of the last
        hops = num_hops + 1
        self._head, self.head_address, self._failed = self.head.numpy(), self.head.data_ptr(), self.failed.numpy()
        self._out, self._outs = self.out.numpy(), [out.numpy() for out in self.outs]
        self._nodes = self.told_nodes.numpy().reshape(hops, self.num_regions)
        self._edges = self.told_edges.numpy()[: hops * self.num_rows].reshape(hops, self.num_rows)
        self._kept = self.kept.numpy()[: hops * self.num_rows].reshape(hops, self.num_rows) if shape.exclude else None
        self._reserve(ints, total_edges, items)
        self.layout = Layout(self)
        self.room = self.layout.room(self.edge_room, self.node_room, num_batches)
        """Of samples that get memory before their sizes are known."""
        if device.type == "cuda":
            self._capture()

    def _reserve(self, ints: Callable[[int], Tensor], num_edges: int, num_items: int) -> None:
        """Memory for what else the launches of a subclass need."""

    def edge_weights(self, rows: Sequence[int], num_edges: Sequence[int]) -> dict[EdgeType, Tensor] | None:
        """What the edges of a batch count, where they do not count the same.

        Args:
            rows: of the batch.
            num_edges: of each row of the launch.
        """
        return None

    def _capture(self) -> None:
        """Compile, launch once without seeds, then record the launch and its end."""
        memory, stamp = self.begin_head()
        memory[: self.head_size] = 0
        memory[t.STAMP.value] = stamp
        if self._compiles_ahead:
            compile_ahead(self._run_and_write, self.plan.device)
        self._run()
        for out in (self.out, *self.outs):
            self._write(out)
        self._graph = record(self._run, self.plan.device)
        self._whole = record(self._run_and_write, self.plan.device)
        self._ends = [record(functools.partial(self._write, out), self.plan.device) for out in self.outs]
        self._launched = torch.cuda.Event()  # type: ignore[no-untyped-call]
        torch.cuda.current_stream(self.plan.device).synchronize()  # the first launch reads the head, which changes now

    def begin_head(self) -> tuple[Ints, int]:
        """The memory of what the host tells a launch, as numpy, and the stamp of the launch."""
        self.stamp += 1
        if self.stamp >= 1 << self.stamp_bits:
            self.table.zero_()
            self.stamp = 1
        self._failed.fill(0)
        self._turn ^= 1
        return self._head, self.stamp

    def __del__(self) -> None:
        """Wait for the GPU, which reads host memory that is about to be used for something else."""
        if getattr(self, "_launched", None) is not None and self.stream is not None and not sys.is_finalizing():
            self.stream.synchronize()

    def move_to(self, stream: torch.cuda.Stream | None) -> Workspace:
        """Use it on another stream from now on."""
        if stream is not None and self.stream is not None:
            stream.wait_stream(self.stream)
        self.stream = stream
        return self

    def launch(self, addresses: list[int] | None = None) -> None:
        """Sample what the head says, on the current stream, which is that of the workspace.

        Args:
            addresses: as for :meth:`finish`, to do that at once.
        """
        if addresses is not None:
            self._out[: len(addresses)] = addresses
        if self.stream is None or self._launched is None:
            (self._run if addresses is None else self._run_and_write)()
        else:
            (self._graph if addresses is None else self._whole).launch(self.stream)
            self._launched.record(self.stream)

    def wait(self) -> Told:
        """Wait for a launch, and for nothing behind it."""
        if self._launched is not None:
            self._launched.synchronize()
        return Told.read(self._nodes, self._edges if self._kept is None else self._kept, self._failed)

    def needed(self) -> tuple[Ints, Ints]:
        """The largest counts of the batches of a launch, like those of a capacity."""
        hops, batches = self.plan.num_hops + 1, self.shape.num_batches
        return self._nodes.reshape(hops, batches, -1).max(1), self._edges[:, self.row_of].max(1)

    def finish(self, addresses: list[int]) -> None:
        """Write the results of the launch, on the current stream.

        Args:
            addresses: of the memory that batches share for their results.
        """
        turn = self._turn
        self._outs[turn][: len(addresses)] = addresses
        if self.stream is None:
            self._write(self.outs[turn])
        else:
            self._ends[turn].launch(self.stream)

    def _run(self) -> None:
        self._plant()
        for hop in range(self.plan.num_hops if self.num_rows else 0):
            if not self.plan.counts_ahead:
                self._count(hop)
            self._pick(hop)
            if self.shape.exclude:
                self._drop(hop)
            if self._fetches:
                self._fetch(hop)
            self._enter(hop)
            self._emit(hop)

    def _run_and_write(self) -> None:
        self._run()
        self._write(self.near_out)

    def _plant(self) -> None:
        plan, most = self.plan, max(self.shape.seeds, default=0)
        plant[(tiles(most, SEED_TILE) + 1, max(self.num_regions, 1))](
            self.head, self.regions, self.rows, self.nodes, self.tree, self.time_max, self.time_min,
            self.first_tree, self.excluded, self.keys, self.stamps, self.table, self.table_size - 1, self.bits,
            self.counts, self.told_nodes, self.fanouts, self.edges, self.told_edges, self.edge_cap, self.count_state,
            self.emit_state, self.item_start, self.item_d, self.item_off, self.failed, self.out, self.near_out,
            plan.num_hops, self.num_regions, self.num_rows, self.shape.num_batches, len(plan.types), self.pitch,
            self.head_size, most if self.num_regions == 1 else 0, len(self.out),
            NEXT=plan.counts_ahead and plan.num_hops > 0, DISJOINT=plan.spec.disjoint, EXCLUDE=self.shape.exclude,
            B=SEED_TILE, **self._range, **LAUNCH,
        )  # fmt: skip

    def _count(self, hop: int) -> None:
        count[(tiles(self.capacity.nodes[hop].max(), COUNT_TILE), self.num_rows)](
            self.rows, self.nodes, self.tree, self.time_max, self.time_min, self.fanouts, self.counts, self.edges,
            self.told_edges, self.edge_cap, self.count_state, self.item_start, self.item_d, self.item_off,
            self.failed, hop, self.num_regions, self.num_rows, self.pitch,
            EXPAND_ALL=self.plan.spec.expand == "all", **self._range, B=COUNT_TILE, **LAUNCH,
        )  # fmt: skip

    def _pick(self, hop: int) -> None:
        plan, spec = self.plan, self.plan.spec
        narrow = (plan.fanouts[hop] > 0) & (plan.fanouts[hop] <= MOST.value)
        where = (hop, self.num_regions, self.num_rows)
        expand_all = spec.expand == "all"
        mode = {"REPLACE": plan.replace, "WEIGHTED": spec.weighted, "EXPAND_ALL": expand_all}
        keyed = {"DISJOINT": spec.disjoint, "COPIES": not spec.disjoint and (hop == 0 or expand_all)}
        items = (
            self.rows, self.nodes, self.tree, self.fanouts, self.keys, self.first_tree, self.counts, self.edges,
            self.item_start, self.item_d, self.item_off, self.position,
        )  # fmt: skip
        names = (self.table, self.table_size - 1, self.bits, self.stamps)
        room = self.capacity.nodes[hop].max()
        if narrow.any():
            largest = int(plan.fanouts[hop].max(where=narrow, initial=1))
            width = triton.next_power_of_2(largest)
            tile = 32 * PICK_WARPS
            pick[(min(tiles(room, tile), self._share(PROGRAMS)), self.num_rows)](
                *items, self.column, *names, *where, K=largest, KP=width, LAST=plan.last, B=tile, **mode, **keyed,
                num_warps=PICK_WARPS, **LAUNCH,
            )  # fmt: skip
        if (narrow | (plan.fanouts[hop] == 0)).all():
            return
        programs = min(tiles(self.capacity.edges[hop + 1].max(), SPREAD_TILE), self._share(PROGRAMS))
        spread[(programs, self.num_rows)](
            self.rows, self.nodes, self.fanouts, self.counts, self.edges, self.item_start, self.item_d, self.item_off,
            self.position, self.column, *where, LAST=plan.last, T=SPREAD_TILE, **mode, **LAUNCH,
        )  # fmt: skip
        if not plan.last and (spec.weighted or plan.fanouts[hop].max() > MOST.value):  # else all items are whole
            pick_wide[(min(tiles(room, 1), self._share(PROGRAMS)), self.num_rows)](
                *items, *names, *where, T=WIDE_TILE, **mode, **keyed, **LAUNCH
            )

    def _drop(self, hop: int) -> None:
        drop[(tiles(self.capacity.edges[hop + 1].max(), EMIT_TILE), self.num_rows)](
            self.rows, self.edges, self.kept, self.excluded, self.position, self.column, self.weight, self.drop_state,
            hop, self.num_rows, self.pitch, WEIGHTS=self.weighs, T=EMIT_TILE, num_warps=EMIT_WARPS, **LAUNCH,
        )  # fmt: skip

    def _fetch(self, hop: int) -> None:
        programs = min(tiles(self.capacity.edges[hop + 1].max(), FETCH_TILE), self._share(PROGRAMS))
        fetch[(programs, self.num_rows)](
            self.rows, self.edges, self.position, self.slots, self.bits, hop, self.num_rows, T=FETCH_TILE,
            num_warps=FETCH_WARPS, **LAUNCH,
        )  # fmt: skip

    def _enter(self, hop: int) -> None:
        programs = min(tiles(self.capacity.edges[hop + 1].max(), ENTER_TILE), self._share(ENTER_PROGRAMS))
        enter[(programs, self.num_rows)](
            self.rows, self.tree, self.edges, self.position, self.column, self.slots, self.table,
            self.table_size - 1, self.bits, self.stamps, self.failed, self.count_state, self.emit_state,
            self.drop_state, hop, self.num_rows, len(self.plan.types), self.pitch,
            DISJOINT=self.plan.spec.disjoint, EXCLUDE=self.shape.exclude, FETCHED=self._fetches, T=ENTER_TILE,
            num_warps=ENTER_WARPS, **LAUNCH,
        )  # fmt: skip

    def _emit(self, hop: int) -> None:
        plan = self.plan
        programs = tiles(self.capacity.edges[hop + 1].max(), EMIT_TILE)
        emit[(programs * self.num_rows,)](
            self.rows, self.nodes, self.tree, self.time_max, self.time_min, self.fanouts, self.counts,
            self.told_nodes, self.node_cap, self.edges, self.told_edges, self.edge_cap, self.item_start, self.item_d,
            self.item_off, self.slots, self.table, self.bits, self.emit_state, self.failed, hop, self.num_regions,
            self.num_rows, len(plan.types), self.pitch, programs, CHAIN=triton.next_power_of_2(self.chain),
            MORE=hop + 1 < plan.num_hops, NEXT=plan.counts_ahead and hop + 1 < plan.num_hops,
            DISJOINT=plan.spec.disjoint, **self._range,
            T=EMIT_TILE, num_warps=EMIT_WARPS, **LAUNCH,
        )  # fmt: skip

    def _write(self, out: Tensor) -> None:
        most = max(self.capacity.nodes.max(initial=0), self.capacity.edges.max(initial=0))
        finish[(min(tiles(most, FINISH_TILE), self._share(PROGRAMS)), max(self.num_rows + self.num_regions, 1))](
            self.rows, self.regions, self.nodes, self.tree, self.counts, self.edges, self.position, self.column,
            self.slots, self.table, self.bits, self.first_tree, out,
            self.plan.num_hops, self.num_regions, self.num_rows, self.shape.num_batches,
            DISJOINT=self.plan.spec.disjoint, T=FINISH_TILE, num_warps=FINISH_WARPS, **LAUNCH,
        )  # fmt: skip

    def _share(self, programs: int) -> int:
        """The part of a row in the programs of a kernel."""
        return max(programs // max(self.num_rows, 1), 8)


def tiles(n: int, size: int) -> int:
    """How many programs work on ``n`` things, at least one."""
    return max(-(-int(n) // size), 1)
