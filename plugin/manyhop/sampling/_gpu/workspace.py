"""The device memory that a launch works in, and the launch itself."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from manyhop.errors import CapacityError
from manyhop.sampling._gpu.capacity import Capacity, Ints, Shape
from manyhop.sampling._gpu.kernels import tables as t
from manyhop.sampling._gpu.kernels.count import count
from manyhop.sampling._gpu.kernels.emit import emit
from manyhop.sampling._gpu.kernels.enter import enter
from manyhop.sampling._gpu.kernels.finish import finish
from manyhop.sampling._gpu.kernels.pick import pick
from manyhop.sampling._gpu.kernels.plant import plant
from manyhop.sampling._gpu.plan import Plan

_capturing = threading.Lock()

SEED_TILE = 128
COUNT_TILE = 128
EMIT_TILE = 256
FINISH_TILE = 1024
PICK_WARPS = 1
ENTER_TILE = 256
ENTER_WARPS = 2
ENTER_PROGRAMS = 1 << 20
TABLE_FACTOR = 2
PROGRAMS = 132 * 16
POSITION_LIMIT = 31
HEAD_COPY = False
LAUNCH: dict[str, Any] = {}


class Workspace:
    """Memory for one launch at a time, and the CUDA graph that works in it.

    Raises:
        CapacityError: not even the numbers of the nodes fit into an entry of the hash table.
    """

    def __init__(self, plan: Plan, shape: Shape, capacity: Capacity) -> None:
        self.plan, self.shape, self.capacity = plan, shape, capacity
        self.stamp = 0
        self.done: torch.cuda.Event | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        num_batches, num_hops = shape.num_batches, plan.num_hops
        num_types, num_edge_types = len(plan.num_nodes), len(plan.edges)
        self.num_regions, self.num_rows = num_batches * num_types, num_batches * num_edge_types
        node_room, edge_room = capacity.nodes[-1], capacity.edges[-1]
        total_nodes = num_batches * int(node_room.sum())
        total_edges = num_batches * int(edge_room.sum())
        self._bits(total_nodes, total_edges)

        regions = np.zeros((num_batches, num_types, t.REGION_COLUMNS.value), np.int64)
        regions[..., t.NODE_BASE.value] = _begins(np.tile(node_room, num_batches)).reshape(num_batches, num_types)
        regions[..., t.NODE_TYPE.value] = np.arange(num_types)
        regions[..., t.OF_BATCH.value] = np.arange(num_batches)[:, None]
        regions[..., t.NUM_NODES.value] = plan.num_nodes
        rows = self._rows(regions)
        of_row = rows[:, t.EDGE_TYPE.value]
        static = [
            rows,
            regions,
            plan.fanouts[:, of_row],
            np.tile(capacity.nodes, (1, num_batches)),
            capacity.edges[:, of_row],
            np.array([plan.node_bits, self.pos_bits, self.key_bits]),
        ]
        device = plan.device
        sizes = [-(-a.size // 2) * 2 for a in static]  # each begins at a multiple of 16 bytes
        flat = np.zeros(sum(sizes), np.int64)
        for a, at in zip(static, _begins(np.array(sizes)), strict=True):
            flat[at : at + a.size] = a.ravel()
        parts = torch.from_numpy(flat).to(device).split(sizes)
        self.rows, self.regions, self.fanouts, self.node_cap, self.edge_cap, self.bits = parts

        def ints(n: int) -> Tensor:
            return torch.zeros(max(n, 1), dtype=torch.int64, device=device)

        def shorts(n: int) -> Tensor:
            return torch.zeros(max(n, 1), dtype=torch.int32, device=device)

        def pinned(n: int) -> Tensor:
            return torch.zeros(max(n, 1), dtype=torch.int64, pin_memory=device.type == "cuda")

        seeds = num_batches * sum(shape.seeds)
        items = int(node_room[plan.dst].sum()) * num_batches
        self.pitch = max(-(-int(edge_room.max(initial=0)) // EMIT_TILE), -(-int(node_room.max(initial=0)) // COUNT_TILE), 1)
        self.nodes = ints(total_nodes)
        self.tree = shorts(total_nodes if plan.spec.disjoint else 1)
        self.time_max, self.time_min = ints(seeds if plan.timed else 1), ints(seeds if plan.timed else 1)
        self.keys, self.first_tree, self.stamps = ints(num_hops * self.num_rows), ints(num_batches), ints(1)
        self.counts, self.edges = ints((num_hops + 1) * self.num_regions), ints((num_hops + 1) * self.num_rows)
        self.count_state, self.emit_state = ints(self.num_rows * self.pitch), ints(self.num_rows * self.pitch)
        self.item_start, self.item_d, self.item_off = ints(items), ints(items), ints(items)
        self.position, self.column, self.slots = ints(total_edges), shorts(total_edges), shorts(total_edges)
        self.table_size = triton.next_power_of_2(max(TABLE_FACTOR * total_nodes, 1024))
        self.table = ints(self.table_size + 1)

        self.head_size = t.BATCHES.value + num_batches * t.BATCH_COLUMNS.value + self.num_regions * t.SEED_COLUMNS.value
        self.head = pinned(self.head_size + 3 * seeds)
        self.head_device = ints(self.head.numel()) if HEAD_COPY and device.type == "cuda" else self.head
        self.failed = pinned(t.FAILED_COLUMNS.value)
        self.told_nodes = pinned((num_hops + 1) * self.num_regions)
        self.told_edges = pinned((num_hops + 1) * self.num_rows)
        self.out = pinned(3 * self.num_rows + 2 * self.num_regions)
        if device.type == "cuda":
            self._capture()

    def _bits(self, total_nodes: int, total_edges: int) -> None:
        """How an entry of the hash table is divided."""
        plan, shape = self.plan, self.shape
        scopes = sum(shape.seeds) * shape.num_batches if plan.spec.disjoint else shape.num_batches
        self.pos_bits = max(total_nodes, total_edges, 2).bit_length() + 1
        self.key_bits = plan.node_bits + max(scopes * len(plan.num_nodes) - 1, 1).bit_length()
        self.stamp_bits = 63 - self.pos_bits - self.key_bits
        if self.stamp_bits < 1 or self.pos_bits > POSITION_LIMIT:
            raise CapacityError(
                f"A batch of {total_edges} edges on a graph of {max(plan.num_nodes)} nodes is too large for the GPU sampler: "
                f"positions take {self.pos_bits} of {POSITION_LIMIT} bits, and {self.pos_bits + self.key_bits} of 62 bits "
                "are needed for an entry of its table. Use smaller fan-outs or batches."
            )

    def _rows(self, regions: Ints) -> Ints:
        """One row of the table for each edge type of each batch."""
        plan, num_batches = self.plan, self.shape.num_batches
        order = sorted(range(len(plan.edges)), key=lambda e: (plan.src[e], e))
        rows = np.zeros((num_batches, len(order), t.ROW_COLUMNS.value), np.int64)
        self.row_of = np.zeros((num_batches, len(order)), np.int64)
        src, dst = plan.src[order], plan.dst[order]
        for b in range(num_batches):
            about = rows[b]
            about[:, : plan.edges.shape[1]] = plan.edges[order]
            about[:, t.BATCH.value] = b
            about[:, t.EDGE_TYPE.value] = order
            about[:, t.SRC.value], about[:, t.DST.value] = b * len(plan.num_nodes) + src, b * len(plan.num_nodes) + dst
            about[:, t.SRC_TYPE.value] = src
            about[:, t.SRC_BASE.value] = regions[b, src, t.NODE_BASE.value]
            about[:, t.DST_BASE.value] = regions[b, dst, t.NODE_BASE.value]
            first = np.searchsorted(src, src)
            about[:, t.CHAIN.value] = b * len(order) + first
            about[:, t.ENDS_CHAIN.value] = np.searchsorted(src, src, side="right") == np.arange(len(order)) + 1
            self.row_of[b, order] = b * len(order) + np.arange(len(order))
        self.chain = int(np.bincount(src, minlength=1).max()) if len(order) else 1
        rows = rows.reshape(-1, t.ROW_COLUMNS.value)
        rows[:, t.EDGE_BASE.value] = _begins(self.capacity.edges[-1][rows[:, t.EDGE_TYPE.value]])
        rows[:, t.ITEM_BASE.value] = _begins(np.tile(self.capacity.nodes[-1][dst], num_batches))
        return rows

    def _capture(self) -> None:
        """Compile by a launch without seeds, then record the launch."""
        self.begin_head()
        self._run()
        stream = torch.cuda.Stream(self.plan.device)
        stream.wait_stream(torch.cuda.current_stream(self.plan.device))
        self.graph = torch.cuda.CUDAGraph()
        with _capturing, torch.cuda.stream(stream):
            self.graph.capture_begin(capture_error_mode="thread_local")
            self._run()
            self.graph.capture_end()
        torch.cuda.current_stream(self.plan.device).wait_stream(stream)

    def begin_head(self) -> Any:
        """The next stamp, and the (emptied) table that the host tells a launch, as numpy."""
        self.stamp += 1
        if self.stamp >= 1 << self.stamp_bits:
            self.table.zero_()
            self.stamp = 1
        head = self.head.numpy()
        head[: self.head_size] = 0
        head[t.STAMP.value] = self.stamp
        self.failed.zero_()
        return head

    def launch(self) -> None:
        """Sample what the head says, on the current stream."""
        if self.graph is not None:
            self.graph.replay()
        else:
            self._run()

    def _run(self) -> None:
        plan, spec = self.plan, self.plan.spec
        largest = max(self.shape.seeds, default=0)
        num_types = len(plan.num_nodes)
        sizes = (self.num_regions, self.num_rows)
        range_of = {"REPLACE": plan.replace, "WEIGHTED": spec.weighted, "TIMED": plan.timed, "WINDOW": self.shape.window}
        if self.head_device is not self.head:
            self.head_device.copy_(self.head, non_blocking=True)
        plant[(max(-(-largest // SEED_TILE), 1), max(self.num_regions, 1))](
            self.head_device, self.regions, self.rows, self.nodes, self.tree, self.time_max, self.time_min, self.first_tree,
            self.keys, self.stamps, self.table, self.table_size - 1, self.bits, self.counts, self.told_nodes, self.fanouts,
            self.edges, self.told_edges, self.edge_cap, self.count_state, self.emit_state, self.item_start, self.item_d,
            self.item_off, self.failed,
            plan.num_hops, *sizes, self.shape.num_batches, num_types, self.pitch,
            NEXT=plan.counts_ahead and plan.num_hops > 0, DISJOINT=spec.disjoint, **range_of, B=SEED_TILE, **LAUNCH,
        )  # fmt: skip
        if self.num_rows == 0:
            return
        nodes_room, edge_room = self.capacity.nodes, self.capacity.edges
        for hop in range(plan.num_hops):
            largest = int(plan.fanouts[hop].max(where=plan.fanouts[hop] <= 64, initial=1))
            if not plan.counts_ahead:
                programs = max(-(-int(nodes_room[hop].max()) // COUNT_TILE), 1)
                count[(programs, self.num_rows)](
                    self.rows, self.nodes, self.tree, self.time_max, self.time_min, self.fanouts, self.counts, self.edges,
                    self.told_edges, self.edge_cap, self.count_state, self.item_start, self.item_d, self.item_off,
                    self.failed, hop, *sizes, self.pitch,
                    EXPAND_ALL=spec.expand == "all", **range_of, B=COUNT_TILE, **LAUNCH,
                )  # fmt: skip
            tile = 32 * PICK_WARPS if not spec.weighted else max(8, 512 // triton.next_power_of_2(largest))
            programs = min(-(-int(nodes_room[hop].max()) // tile), max(PROGRAMS // self.num_rows, 8))
            pick[(max(programs, 1), self.num_rows)](
                self.rows, self.nodes, self.tree, self.fanouts, self.keys, self.first_tree, self.counts, self.edges,
                self.item_start, self.item_d, self.item_off, self.position, self.column,
                self.table, self.table_size - 1, self.bits, self.stamps, self.count_state, self.emit_state,
                hop, *sizes, self.pitch,
                K=largest, KP=triton.next_power_of_2(largest), REPLACE=plan.replace, WEIGHTED=spec.weighted,
                LAST=plan.last, DISJOINT=spec.disjoint, EXPAND_ALL=spec.expand == "all", COPIES=not spec.disjoint and (hop == 0 or spec.expand == "all"),
                B=tile, num_warps=PICK_WARPS if not spec.weighted else 4, **LAUNCH,
            )  # fmt: skip
            programs = min(-(-int(edge_room[hop + 1].max()) // ENTER_TILE), max(ENTER_PROGRAMS // self.num_rows, 8))
            enter[(max(programs, 1), self.num_rows)](
                self.rows, self.tree, self.edges, self.position, self.column, self.slots, self.table,
                self.table_size - 1, self.bits, self.stamps, self.failed, hop, self.num_rows, num_types,
                DISJOINT=spec.disjoint, T=ENTER_TILE, num_warps=ENTER_WARPS, **LAUNCH,
            )  # fmt: skip
            programs = max(-(-int(edge_room[hop + 1].max()) // EMIT_TILE), 1)
            emit[(programs, self.num_rows)](
                self.rows, self.nodes, self.tree, self.time_max, self.time_min, self.fanouts, self.counts, self.told_nodes,
                self.node_cap, self.edges, self.told_edges, self.edge_cap, self.item_start, self.item_d, self.item_off,
                self.slots, self.table, self.bits, self.emit_state, self.failed, hop, *sizes, num_types, self.pitch,
                CHAIN=triton.next_power_of_2(self.chain), NEXT=plan.counts_ahead and hop + 1 < plan.num_hops,
                DISJOINT=spec.disjoint, **range_of, T=EMIT_TILE, **LAUNCH,
            )  # fmt: skip

    def finish(self, most: int) -> None:
        """Write the results to the addresses in ``out``; ``most``: edges (nodes) of the largest row (region)."""
        programs = min(-(-most // FINISH_TILE), max(PROGRAMS // max(self.num_rows, 1), 8))
        finish[(max(programs, 1), max(self.num_rows + self.num_regions, 1))](
            self.rows, self.regions, self.nodes, self.tree, self.counts, self.edges, self.position, self.column,
            self.slots, self.table, self.bits, self.first_tree, self.out,
            self.plan.num_hops, self.num_regions, self.num_rows, DISJOINT=self.plan.spec.disjoint, T=FINISH_TILE, **LAUNCH,
        )  # fmt: skip


def _begins(sizes: Ints) -> Ints:
    """Where parts of these sizes begin that lie behind each other."""
    return np.cumsum(sizes) - sizes
