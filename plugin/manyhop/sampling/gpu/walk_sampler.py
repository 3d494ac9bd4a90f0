"""Samplers of random walks and of personalised PageRank on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from manyhop.errors import CapacityError
from manyhop.graph import Graph
from manyhop.sampling.check import UNBIASED, check_ids, check_spec
from manyhop.sampling.contract import PageRankNeighbors, PageRankSpec, WalkRequest, Walks, WalkSpec
from manyhop.sampling.gpu.kernels.walks import NO_SLOTS, STEP_COLUMNS, negative_walk, page_rank, walk
from manyhop.sampling.gpu.launch.plan import edge_tables
from manyhop.sampling.gpu.lookup import GPUEdgeLookup
from manyhop.sampling.gpu.transfer import kernel_device
from manyhop.sampling.random import Use, make_key
from manyhop.system.progress import Progress
from manyhop.system.triton_launch import as_current

_WALKS_PER_PROGRAM = 128


class GPUWalkSampler:
    """:class:`manyhop.sampling.CPUWalkSampler` on a GPU, on the current stream.

    Args:
        graph: the topology, where the GPU reads it.
        spec: how to walk; identical for all requests.
        device: where to walk and store results.

    Raises:
        InputError: the device is no GPU.
    """

    def __init__(self, graph: Graph, spec: WalkSpec, *, device: torch.device | str) -> None:
        check_spec(graph, spec)
        self.graph, self.spec, self.device = graph, spec, kernel_device(device, "CPUWalkSampler")
        tables = edge_tables(graph, self.device, weighted=spec.weighted)
        steps = tables[[graph.edge_types.index(t) for t in spec.steps]]
        assert steps.shape[1] == STEP_COLUMNS.value
        self._steps = torch.from_numpy(steps).to(self.device)
        self._stop = torch.tensor(spec.stop or (0.0,), dtype=torch.float64, device=self.device)
        bias = 1 / spec.p, 1 / spec.q
        self._bias = torch.tensor([*bias, max(*bias, 1.0)], dtype=torch.float64, device=self.device)
        self._edges = self._steps, self._steps  # not read
        is_biased = (spec.p, spec.q) != (1, 1)
        if is_biased:
            lookup = GPUEdgeLookup(graph.csc[spec.steps[0]], self.device, UNBIASED)
            self._edges = lookup.begin, lookup.destination
        self._modes = {
            "WEIGHTED": spec.weighted,
            "BIASED": is_biased,
            "STOPS": spec.stop is not None,
            "EDGE_IDS": spec.edge_ids,
        }

    def sample(self, request: WalkRequest) -> Walks:
        """Walk from ``request.start``, on any device; checking ids that are on the GPU waits for it."""
        check_ids("start nodes of walks", request.start, self.graph, self.spec.steps[0][2])
        num_walks, num_steps = request.start.numel(), len(self.spec.steps)
        node = torch.empty((num_walks, num_steps + 1), dtype=torch.int64, device=self.device)
        node[:, 0] = request.start
        edge_id = None
        if self.spec.edge_ids:
            edge_id = torch.empty((num_walks, num_steps), dtype=torch.int64, device=self.device)
        key = int(make_key(Use.WALK, *request.key))
        if num_walks:
            with as_current(self.device):
                walk[(-(-num_walks // _WALKS_PER_PROGRAM),)](
                    self._steps, self._stop, self._bias, *self._edges, node, node if edge_id is None else edge_id,
                    _as_int32(key >> 32), _as_int32(key & 0xFFFFFFFF), num_walks, num_steps, T=_WALKS_PER_PROGRAM,
                    enable_fp_fusion=False, **self._modes,
                )  # fmt: skip
        return Walks(node=node, edge_id=edge_id)


def draw_negative_walks(key: int, num_nodes: Tensor, node: Tensor) -> None:
    """Draw nodes after ``node[:, 0]`` on the current stream; see :class:`manyhop.sampling.walks.NegativeWalker`."""
    if node.numel():
        with as_current(node.device):
            negative_walk[(-(-node.shape[0] // _WALKS_PER_PROGRAM),)](
                num_nodes, node, _as_int32(key >> 32), _as_int32(key & 0xFFFFFFFF), node.shape[0], num_nodes.numel(),
                T=_WALKS_PER_PROGRAM,
            )  # fmt: skip


def _as_int32(half: int) -> int:
    return half - (1 << 32) if half >> 31 else half


_PIECE = 1 << 16
"""Seeds of a launch."""
_FIRST_PIECE = 256
"""Seeds of the first launch, which measures how much memory seeds need."""
_PROGRAMS = 132 * 32
_TABLE_BYTES = 1 << 30
"""Memory for the tables of all programs, unless the table of one takes more."""
_LOG_SLOTS = 11
"""Initial logarithm of a table's slots."""
_FEW = 1 / 16
"""Share of seeds that may need larger tables than the others."""
_ROOM = 1 << 14
"""Initial capacity for neighbours."""
_LANES = 32
_SLOT_BYTES = 32 + 6


class GPUPageRankSampler:
    """Finds neighbours on a GPU, on the current stream; for one thread at a time.

    Each seed has a hash table, whose size is learned: seeds that need a larger one are done again.

    Args:
        graph: the topology, where the GPU reads it.
        spec: how to search; identical for all nodes.
        device: where to find them and store results.

    Raises:
        InputError: the device is no GPU.
        CapacityError: the tables do not fit in the memory of the device.
    """

    def __init__(self, graph: Graph, spec: PageRankSpec, *, device: torch.device | str) -> None:
        check_spec(graph, spec)
        self.graph, self.spec, self.device = graph, spec, kernel_device(device, "CPUPageRankSampler")
        tables = edge_tables(graph, self.device)[graph.edge_types.index(spec.edge_type)]
        self._edges = torch.from_numpy(tables).to(self.device)
        numbers = [spec.alpha, 1 - spec.alpha, spec.alpha * spec.eps]
        self._numbers = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        self._log_slots, self._room = _LOG_SLOTS, _ROOM / _FIRST_PIECE

    def sample(self, nodes: Tensor, *, bar: Progress | None = None) -> PageRankNeighbors:
        """Find the neighbours of ``nodes [num_nodes] int64``, on any device; waits for the GPU.

        Args:
            nodes: duplicates are allowed.
            bar: counts the nodes that are done.
        """
        check_ids("nodes", nodes, self.graph, self.spec.edge_type[2])
        nodes = nodes.to(self.device)
        pieces = [nodes[:_FIRST_PIECE], *torch.split(nodes[_FIRST_PIECE:], _PIECE)]
        every = []
        for piece in pieces:
            every.append(self._find(piece.contiguous()))
            if bar is not None:
                bar.add(piece.numel())
        sizes, node, value = (torch.cat(parts) for parts in zip(*every, strict=True))
        return PageRankNeighbors(begin=torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]), node=node, value=value)

    def _find(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return how many neighbours each node of a piece has, the neighbours, and their ranks."""
        size, begin = torch.zeros_like(nodes), torch.zeros_like(nodes)
        todo, log_slots = torch.arange(nodes.numel(), device=self.device), self._log_slots
        room = int(1.25 * self._room * nodes.numel()) + 1
        parts: list[tuple[Tensor, Tensor]] = []
        offset = 0  # of a launch's results among all results
        while todo.numel():
            results, needed = self._launch(nodes, todo, size, begin, room, log_slots)
            parts.append(results)
            begin[todo] += offset
            offset += room
            of_these = size[todo]
            small = of_these == NO_SLOTS.value
            num_small, num_left = int(small.sum()), int((of_these < 0).sum())
            self._room = max(self._room, needed / max(todo.numel() - num_small, 1))
            if num_small > _FEW * todo.numel():
                self._log_slots = max(self._log_slots, log_slots + 2)
            if num_small:
                log_slots += 2
            todo = todo[of_these < 0]
            room = int(1.25 * self._room * num_left) + needed * (num_left > num_small) + 1
        at = torch.repeat_interleave(begin - (size.cumsum(0) - size), size)
        at += torch.arange(at.numel(), device=self.device)
        none = nodes[:0], nodes[:0].to(torch.float64)
        node, rank = (torch.cat(part) for part in zip(*(parts or [none]), strict=True))
        return size, node[at], rank[at]

    def _launch(
        self, nodes: Tensor, todo: Tensor, size: Tensor, begin: Tensor, room: int, log_slots: int
    ) -> tuple[tuple[Tensor, Tensor], int]:
        """Find the neighbours of some nodes. Return them with their ranks, ``[room]``, and how much room they need."""
        num_slots = 1 << log_slots
        programs = max(1, min(todo.numel(), _PROGRAMS, _TABLE_BYTES // (_SLOT_BYTES * num_slots)))
        top_k = -1 if self.spec.top_k is None else self.spec.top_k
        try:
            tables = torch.full((programs, num_slots, 4), -1, dtype=torch.int64, device=self.device)
            lists = torch.empty((programs, 3, num_slots // 2), dtype=torch.int32, device=self.device)
            node = torch.empty(room, dtype=torch.int64, device=self.device)
            rank = torch.empty(room, dtype=torch.float64, device=self.device)
        except torch.OutOfMemoryError as error:
            raise CapacityError(
                f"The memory of {self.device} has no room for tables of {num_slots} nodes and {room} neighbours. Use a "
                "larger eps, fewer nodes at a time or a smaller top_k, or keep other data elsewhere."
            ) from error
        cursor = torch.zeros(1, dtype=torch.int64, device=self.device)
        with as_current(self.device):
            page_rank[(programs,)](
                self._edges, self._numbers, nodes, todo, tables, lists, size, begin, node, rank, cursor,
                todo.numel(), log_slots, top_k, room, T=_LANES, num_warps=1, enable_fp_fusion=False,
            )  # fmt: skip
        return (node, rank), int(cursor)
