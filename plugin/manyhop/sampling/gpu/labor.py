"""The GPU backend of layer-neighbour sampling: equal to the reference bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import EdgeType, Graph
from manyhop.sampling.check import check_labor_spec
from manyhop.sampling.contract import LaborSpec, NeighborSpec, NodeRequest, SampledSubgraph
from manyhop.sampling.gpu.kernels import labor as kernels
from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.kernels.count import count
from manyhop.sampling.gpu.kernels.labor_columns import BLOCK, MEDIUM, SHORT, labor_rank, labor_scale, labor_weigh
from manyhop.sampling.gpu.plan import Plan
from manyhop.sampling.gpu.sampler import GPUSampler, Pending
from manyhop.sampling.gpu.transfer import address
from manyhop.sampling.gpu.workspace import COUNT_TILE, LAUNCH, PROGRAMS, Workspace, tiles

# Programs that the entries of a row are divided among, and entries that one looks at at once.
CHUNKS, ENTRY_TILE = 1024, 256  # powers of two
# Columns per program, the length that they exceed, and that of a row.
LENGTHS = ((16, 0, SHORT.value), (2, SHORT.value, MEDIUM.value), (1, MEDIUM.value, BLOCK.value))
EXACTLY = LAUNCH | {"enable_fp_fusion": False}
NO_LIMIT = 1 << 62


class GPULaborSampler:
    """Samples by LABOR on a GPU; safe to call from several threads and on several streams.

    Args:
        graph: the topology; its tensors lie in the memory of the device, in pinned host memory, or in mapped memory of
            other GPUs.
        spec: how to sample; the same for every request. Neither importance nor replacement.
        device: where to sample, and where results are.

    Raises:
        InputError: the spec does not fit the graph or asks for importance or replacement, the device is no GPU, or a
            request does not fit the spec.
        GraphError: the graph has no weights that the spec asks for, lies where the GPU cannot read it, or is not laid
            out as :class:`manyhop.graph.CSC` says.
        CapacityError: a batch is too large for the memory or the tables of the sampler.
    """

    collective = False

    def __init__(self, graph: Graph, spec: LaborSpec, *, device: torch.device | str) -> None:
        check_labor_spec(graph, spec)
        if spec.importance != 0 or spec.replace:
            raise InputError(
                f"Expected importance=0 and replace=False on a GPU, got {spec.importance} and {spec.replace}. Use "
                "CPULaborSampler for these."
            )
        self.graph, self.spec = graph, spec
        self._hops = _Hops(graph, spec, device)
        self.device = self._hops.device

    def prepare(self, requests: Sequence[NodeRequest] = (), *, ahead: int = 2) -> None:
        """As :meth:`GPUSampler.prepare`."""
        self._hops.prepare(requests, ahead=ahead)

    def sample(self, request: NodeRequest) -> SampledSubgraph:
        """Sample around ``request.seeds``."""
        return self._hops.sample(request)

    def begin(self, requests: Sequence[NodeRequest]) -> Pending:
        """As :meth:`GPUSampler.begin`."""
        return self._hops.begin(requests)


class _Plan(Plan):
    """What the kernels know: hops that take whole columns, and how LABOR picks from these."""

    def __init__(self, graph: Graph, frame: NeighborSpec, device: torch.device, spec: LaborSpec) -> None:
        super().__init__(graph, frame, device)
        self.labor = spec
        self.counts_ahead = False
        wanted = [spec.fanouts[e] for e in graph.edge_types]
        self.wanted = np.array(wanted, np.int64).reshape(len(wanted), self.num_hops).T.copy()
        twice = 1 if spec.method == "exact" else 2  # Poisson: few nodes get twice as many as they ask for
        self.guess = NeighborSpec(
            fanouts={e: tuple(k if k < 0 else twice * k for k in f) for e, f in spec.fanouts.items()},
            expand=spec.expand,
        )
        if spec.weighted:
            for about, edge_type in zip(self.edges, graph.edge_types, strict=True):
                weight = graph.csc[edge_type].weight
                about[t.WEIGHT.value] = address(f"weight of {edge_type}", weight, device, torch.float64)


class LaborWorkspace(Workspace):
    """Memory for launches whose hops pick by LABOR."""

    plan: _Plan
    _compiles_ahead = False

    def _reserve(self, ints: Callable[[int], Tensor], num_edges: int, num_items: int) -> None:
        plan, device = self.plan, self.plan.device
        spec, per_hop = plan.labor, (plan.num_hops + 1) * self.num_rows
        poisson, weighted = spec.method == "poisson", spec.weighted
        self.weighs = poisson and weighted
        of_row = self.edge_types
        self.wanted = torch.from_numpy(plan.wanted[:, of_row].ravel()).to(device)
        self.no_limit = torch.full((max(per_hop, 1),), NO_LIMIT, dtype=torch.int64, device=device)
        self.entries, self.entries_told = ints(per_hop), ints(per_hop)
        self.labor_keys = ints(plan.num_hops * self.num_rows * kernels.KEY_COLUMNS.value)
        self.chunk_count = ints(self.num_rows * CHUNKS)
        differ = weighted or not poisson
        self.item_a, self.item_b = ints(num_items if differ else 1), ints(num_items if differ else 1)
        self.value = torch.zeros(num_edges if self.weighs else 1, dtype=torch.float64, device=device)
        self.weight = torch.zeros(num_edges if self.weighs else 1, dtype=torch.float32, device=device)
        of_kind = (kernels.BY_SHARE, kernels.EQUAL) if poisson else (kernels.SMALLEST_BY_WEIGHT, kernels.SMALLEST)
        self.kind, self.kind_without = of_kind if weighted else of_kind[1:] * 2

    def edge_weights(self, rows: Sequence[int], num_edges: Sequence[int]) -> dict[EdgeType, Tensor] | None:
        if not self.weighs:
            return None
        return {
            edge_type: self.weight[self.edge_base[r] : self.edge_base[r] + num_edges[r]].clone()
            for edge_type, r in zip(self.plan.edge_types, rows, strict=True)
        }

    def _plant(self) -> None:
        super()._plant()
        spec = self.plan.labor
        kernels.labor_keys[(tiles(self.num_rows, 128),)](
            self.head, self.rows, self.labor_keys, self.plan.num_hops, self.num_rows,
            DEPENDENCY=spec.batch_dependency, SAME=spec.layer_dependency, B=128, **LAUNCH,
        )  # fmt: skip

    def _count(self, hop: int) -> None:
        """The columns of the nodes that ask, behind each other."""
        count[(tiles(self.capacity.nodes[hop].max(), COUNT_TILE), self.num_rows)](
            self.rows, self.nodes, self.tree, self.time_max, self.time_min, self.fanouts, self.counts, self.entries,
            self.entries_told, self.no_limit, self.count_state, self.item_start, self.item_d, self.item_off,
            self.failed, hop, self.num_regions, self.num_rows, self.pitch,
            EXPAND_ALL=self.plan.spec.expand == "all", **self._range, B=COUNT_TILE, **LAUNCH,
        )  # fmt: skip

    def _pick(self, hop: int) -> None:
        spec = self.plan.labor
        expand_all, where = spec.expand == "all", (hop, self.num_regions, self.num_rows)
        about = (self.rows, self.wanted, self.labor_keys, self.counts)
        columns = (self.item_start, self.item_d, self.item_a, self.item_b)
        room = self.capacity.nodes[hop].max()
        sizes = []
        for items, longer, width in LENGTHS:
            of_size = {"B": items, "LONGER": longer, "W": width, "EXPAND_ALL": expand_all} | EXACTLY
            sizes.append((min(tiles(room, items), self._share(PROGRAMS)), of_size))
        for programs, of_size in sizes:
            if spec.method == "exact":
                labor_rank[(programs, self.num_rows)](
                    *about, *columns, *where, KIND=self.kind, DEPENDENCY=spec.batch_dependency, **of_size
                )
            elif self.weighs:
                labor_scale[(programs, self.num_rows)](self.rows, self.wanted, self.counts, *columns, *where, **of_size)
        chunks = (self.entries, self.chunk_count, self.item_start, self.item_d, self.item_off, self.item_a, self.item_b)
        kinds = {
            "KIND": self.kind, "KIND_WITHOUT": self.kind_without, "DEPENDENCY": spec.batch_dependency,
            "EXPAND_ALL": expand_all, "T": ENTRY_TILE,
        }  # fmt: skip
        kernels.labor_mark[(CHUNKS, self.num_rows)](*about, *chunks, *where, **kinds, **EXACTLY)
        kernels.labor_place[(CHUNKS, self.num_rows)](
            *about, *chunks, self.edges, self.told_edges, self.edge_cap, self.failed, self.position, self.column,
            self.value, *where, CHUNKS=CHUNKS, **kinds, **EXACTLY,
        )  # fmt: skip
        if self.weighs:
            for programs, of_size in sizes:
                labor_weigh[(programs, self.num_rows)](
                    self.rows, self.counts, self.edges, self.column, self.value, self.weight, *where, **of_size
                )


class _Hops(GPUSampler):
    """The hops of neighbour sampling, with other picks."""

    _workspace = LaborWorkspace

    def __init__(self, graph: Graph, spec: LaborSpec, device: torch.device | str) -> None:
        self._labor = spec
        whole = {e: tuple(-1 if k != 0 else 0 for k in f) for e, f in spec.fanouts.items()}
        super().__init__(graph, NeighborSpec(fanouts=whole, expand=spec.expand), device=device)

    def _make_plan(self, spec: NeighborSpec) -> Plan:
        return _Plan(self.graph, spec, self.device, self._labor)
