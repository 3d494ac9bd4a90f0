"""Random walks on a GPU: equal to the reference bit for bit, one kernel for all steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from manyhop.graph import Graph
from manyhop.sampling.check import UNBIASED, check_walk_request, check_walk_spec
from manyhop.sampling.contract import WalkRequest, Walks, WalkSpec
from manyhop.sampling.gpu.kernels.walks import STEP_COLUMNS, negative_walk, walk
from manyhop.sampling.gpu.launch.plan import edge_tables
from manyhop.sampling.gpu.lookup import GPUEdgeLookup
from manyhop.sampling.gpu.transfer import kernel_device
from manyhop.sampling.random import Use, make_key

_WALKS_PER_PROGRAM = 128


class GPUWalkSampler:
    """Walks on a GPU, on the current stream; safe to call from several threads.

    With ``p`` or ``q``, it makes a table of the edges, sorted, of 4 to 8 bytes per edge, on the GPU.

    Args:
        graph: the topology, where the GPU reads it.
        spec: how to walk; the same for every request.
        device: where to walk, and where results are.

    Raises:
        InputError: the spec does not fit the graph, a request does not fit the spec, or the device is no GPU.
        GraphError: weights are asked for that the graph does not have, or the GPU cannot read the graph.
        CapacityError: the table of edges does not fit in the memory of the device.
    """

    def __init__(self, graph: Graph, spec: WalkSpec, *, device: torch.device | str) -> None:
        check_walk_spec(graph, spec)
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
        check_walk_request(self.graph, self.spec, request)
        num_walks, num_steps = request.start.numel(), len(self.spec.steps)
        node = torch.empty((num_walks, num_steps + 1), dtype=torch.int64, device=self.device)
        node[:, 0] = request.start
        edge_id = None
        if self.spec.edge_ids:
            edge_id = torch.empty((num_walks, num_steps), dtype=torch.int64, device=self.device)
        key = int(make_key(Use.WALK, *request.key))
        if num_walks:
            walk[(-(-num_walks // _WALKS_PER_PROGRAM),)](
                self._steps,
                self._stop,
                self._bias,
                *self._edges,
                node,
                node if edge_id is None else edge_id,
                _as_int32(key >> 32),
                _as_int32(key & 0xFFFFFFFF),
                num_walks,
                num_steps,
                T=_WALKS_PER_PROGRAM,
                enable_fp_fusion=False,
                **self._modes,
            )
        return Walks(node=node, edge_id=edge_id)


class GPUNegativeWalks:
    """Draws uniform nodes in place of walks on a GPU, on the current stream; safe to call from several threads.

    Args:
        num_nodes: of each step, the number of nodes of the type that it leads to; checked by the caller.
        device: where to draw, and where results are.

    Raises:
        InputError: the device is no GPU.
    """

    def __init__(self, num_nodes: Sequence[int], *, device: torch.device | str) -> None:
        self.device = kernel_device(device, "CPUNegativeWalks")
        self._num_nodes = torch.tensor(num_nodes, dtype=torch.int64, device=self.device)

    def sample(self, request: WalkRequest) -> torch.Tensor:
        """Return ``[num_walks, num_steps + 1] int64``: the starts, and the nodes drawn."""
        num_walks, num_steps = request.start.numel(), self._num_nodes.numel()
        node = torch.empty((num_walks, num_steps + 1), dtype=torch.int64, device=self.device)
        node[:, 0] = request.start
        key = int(make_key(Use.NEGATIVE_DST, *request.key))
        if num_walks:
            negative_walk[(-(-num_walks // _WALKS_PER_PROGRAM),)](
                self._num_nodes,
                node,
                _as_int32(key >> 32),
                _as_int32(key & 0xFFFFFFFF),
                num_walks,
                num_steps,
                T=_WALKS_PER_PROGRAM,
            )
        return node


def _as_int32(half: int) -> int:
    return half - (1 << 32) if half >> 31 else half
