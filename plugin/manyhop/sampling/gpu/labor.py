"""The GPU backend of layer-neighbour sampling: equal to the reference bit for bit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import Graph
from manyhop.graph.csc import of_type
from manyhop.sampling.check import address, check_spec
from manyhop.sampling.contract import LaborSpec, NeighborSpec
from manyhop.sampling.gpu.kernels import labor as kernels
from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.labor_columns import BLOCK, MEDIUM, SHORT, labor_rank, labor_scale, labor_weigh
from manyhop.sampling.gpu.launch.memory import tiles
from manyhop.sampling.gpu.launch.plan import Capacity, Plan, Shape
from manyhop.sampling.gpu.launch.sequence import LAUNCH, PROGRAMS, KernelSequence
from manyhop.sampling.gpu.sampler import GPUSampler

# Programs that the entries of a segment are divided among, and entries that one looks at at once.
CHUNKS, ENTRY_TILE = 1024, 256  # powers of two
# Columns per program, the length that they exceed, and the length of a row.
LENGTHS = ((16, 0, SHORT.value), (2, SHORT.value, MEDIUM.value), (1, MEDIUM.value, BLOCK.value))
EXACTLY = LAUNCH | {"enable_fp_fusion": False}
NO_LIMIT = 1 << 62


class _Plan(Plan):
    """A plan of hops over whole columns, with the parameters of LABOR's picks."""

    def __init__(self, graph: Graph, frame: NeighborSpec, device: torch.device, spec: LaborSpec) -> None:
        super().__init__(graph, frame, device)
        self.labor = spec
        self.counts_ahead = False
        self.weighs = spec.method == "poisson" and spec.weighted
        wanted = [spec.fanouts[e] for e in graph.edge_types]
        self.wanted = np.array(wanted, np.int64).reshape(len(wanted), self.num_hops).T.copy()
        twice = 1 if spec.method == "exact" else 2  # Poisson: few nodes get more than twice their fanout
        self.guess = NeighborSpec(
            fanouts={e: tuple(k if k < 0 else twice * k for k in f) for e, f in spec.fanouts.items()},
            expand=spec.expand,
        )
        if spec.weighted:
            for about, edge_type in zip(self.edges, graph.edge_types, strict=True):
                weight = graph.csc[edge_type].weight
                about[t.WEIGHT.value] = address(f"weight{of_type(edge_type)}", weight, device, torch.float64)


class LaborMemory(NamedTuple):
    """Working memory of LABOR's kernels, in addition to that of all launches."""

    wanted: Tensor
    """``[num_hops, num_segments]``: fanouts of LABOR."""
    entries: Tensor
    """``[num_hops + 1, num_segments]``: entries of all columns of the frontiers, after each hop."""
    keys: Tensor
    chunk_count: Tensor
    """``[num_segments, CHUNKS]``."""
    param_a: Tensor
    """Per frontier node: sum of weights (Poisson) or limit of the keys (exact)."""
    param_b: Tensor
    """Per frontier node: scale of the probabilities (Poisson) or last entry of ties (exact)."""
    value: Tensor
    """``float64``: weight of each edge before normalization, if edges have weights."""


class LaborSequence(KernelSequence):
    """Enqueues the kernels of launches whose hops pick by LABOR."""

    plan: _Plan
    compiles_ahead = False

    def __init__(self, plan: _Plan, shape: Shape, capacity: Capacity) -> None:
        super().__init__(plan, shape, capacity)
        extent, device = self.extent, plan.device
        per_hop = (plan.num_hops + 1) * extent.num_segments
        poisson, weighted = plan.labor.method == "poisson", plan.labor.weighted

        def ints(n: int) -> Tensor:
            return torch.zeros(max(n, 1), dtype=torch.int64, device=device)

        num_params = extent.num_frontier if weighted or not poisson else 1
        self._labor = LaborMemory(
            wanted=torch.from_numpy(plan.wanted[:, extent.edge_types].ravel()).to(device),
            entries=ints(per_hop),
            keys=ints(plan.num_hops * extent.num_segments * kernels.KEY_COLUMNS.value),
            chunk_count=ints(extent.num_segments * CHUNKS),
            param_a=ints(num_params),
            param_b=ints(num_params),
            value=torch.zeros(extent.num_edges if plan.weighs else 1, dtype=torch.float64, device=device),
        )
        # Entries of columns are counted like edges, without a limit of capacity.
        no_limit = torch.full((max(per_hop, 1),), NO_LIMIT, dtype=torch.int64, device=device)
        self._counted = (
            self.memory.tables._replace(edge_cap=no_limit),
            self.memory.edges._replace(counts=self._labor.entries),
            self.host.reports._replace(edges=ints(per_hop)),
        )
        of_kind = (kernels.BY_SHARE, kernels.EQUAL) if poisson else (kernels.SMALLEST_BY_WEIGHT, kernels.SMALLEST)
        self._kind, self._kind_without = of_kind if weighted else of_kind[1:] * 2

    def _plant(self) -> None:
        super()._plant()
        spec, num_segments = self.plan.labor, self.extent.num_segments
        kernels.labor_keys[(tiles(num_segments, 128),)](
            self.host.descriptor, self.memory.tables.segments, self._labor.keys, self.plan.num_hops, num_segments,
            DEPENDENCY=spec.batch_dependency, SAME=spec.layer_dependency, B=128, **LAUNCH,
        )  # fmt: skip

    def _pick(self, hop: int) -> None:
        plan, spec, extent, labor = self.plan, self.plan.labor, self.extent, self._labor
        tables, nodes, frontier, edges = self.memory.tables, self.memory.nodes, self.memory.frontier, self.memory.edges
        expand_all, where = spec.expand == "all", (hop, extent.num_type_ranges, extent.num_segments)
        picking = (tables, labor, nodes, frontier)
        most_nodes = self.capacity.nodes[hop].max()
        sizes = []
        for at_once, longer, width in LENGTHS:
            of_size = {"B": at_once, "LONGER": longer, "W": width, "EXPAND_ALL": expand_all} | EXACTLY
            sizes.append(((min(tiles(most_nodes, at_once), self._share(PROGRAMS)), extent.num_segments), of_size))
        for grid, of_size in sizes:
            if spec.method == "exact":
                labor_rank[grid](*picking, *where, KIND=self._kind, DEPENDENCY=spec.batch_dependency, **of_size)
            elif plan.weighs:
                labor_scale[grid](*picking, *where, **of_size)
        kinds = {
            "KIND": self._kind, "KIND_WITHOUT": self._kind_without, "DEPENDENCY": spec.batch_dependency,
            "EXPAND_ALL": expand_all, "T": ENTRY_TILE,
        }  # fmt: skip
        grid = CHUNKS, extent.num_segments
        kernels.labor_mark[grid](*picking, *where, **kinds, **EXACTLY)
        kernels.labor_place[grid](*picking, edges, self.host.reports, *where, CHUNKS=CHUNKS, **kinds, **EXACTLY)
        if plan.weighs:
            for grid, of_size in sizes:
                labor_weigh[grid](tables, labor, nodes, edges, *where, **of_size)


class GPULaborSampler(GPUSampler):
    """Samples by LABOR on a GPU: :class:`GPUSampler`, whose arguments and exceptions it has, with other picks.

    Raises:
        InputError: the spec has importance or replacement.
    """

    _kernels = LaborSequence

    def __init__(self, graph: Graph, spec: LaborSpec, *, device: torch.device | str) -> None:
        check_spec(graph, spec)
        if spec.importance != 0 or spec.replace:
            raise InputError(
                f"Expected importance=0 and replace=False on a GPU, got {spec.importance} and {spec.replace}. Use "
                "CPULaborSampler for these."
            )
        self._labor = spec
        whole = {e: tuple(-1 if k != 0 else 0 for k in f) for e, f in spec.fanouts.items()}
        super().__init__(graph, NeighborSpec(fanouts=whole, expand=spec.expand), device=device)

    def _make_plan(self, spec: NeighborSpec) -> Plan:
        return _Plan(self.graph, spec, self.device, self._labor)
