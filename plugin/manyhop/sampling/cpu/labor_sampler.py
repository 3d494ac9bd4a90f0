"""The CPU backend of layer-neighbour sampling: equal to the reference bit for bit, compiled when first used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from manyhop.graph import Graph
from manyhop.sampling.check import check_spec
from manyhop.sampling.contract import LaborSpec, NeighborSpec, NodeRequest, SampledSubgraph
from manyhop.sampling.cpu import tables as c
from manyhop.sampling.cpu.sampler import CPUSampler, Outputs
from manyhop.sampling.cpu.workspace import Empty, Workspace, empty, key_of


class CPULaborSampler(CPUSampler):
    """Samples by LABOR on the CPU: :class:`CPUSampler`, whose arguments and exceptions it has, with other picks."""

    def __init__(self, graph: Graph, spec: LaborSpec, *, empty: Empty = empty) -> None:
        check_spec(graph, spec)
        self._labor_spec = spec
        frame = NeighborSpec(fanouts=spec.fanouts, replace=spec.replace, expand=spec.expand)
        super().__init__(graph, frame, empty=empty)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_labor_spec": self._labor_spec}

    def _prepare(self) -> None:
        super()._prepare()
        from manyhop.sampling.cpu.kernels import labor as kernels

        self._labor = kernels
        spec = self._labor_spec
        self._weighs = spec.method == "poisson" and (spec.weighted or spec.importance != 0)

    def _batch_kernels(self) -> tuple[Any, Any]:
        return self._kernels.sample_picked_batch, self._kernels.sample_picked_batch

    def _workspace(self) -> Workspace:
        ws = super()._workspace()
        if ws.mode["picked_ahead"][0] == 0:
            ws.mode["picked_ahead"][0] = 1
            self._local.scratch = _Scratch(self._labor_spec)
        return ws

    def _pick_ahead(self, ws: Workspace, request: NodeRequest) -> None:
        """Pick for all columns of the hop. Lengths are an upper limit; memory is reserved for the likely number."""
        scratch: _Scratch = self._local.scratch
        fanout = self._fanouts[ws.mode["hop"][0]]
        self._labor.measure_labor(self._edges, *ws.tables[:2], fanout)
        totals, longest = ws.found["total"].tolist(), int(ws.found["most"].max(initial=0))
        frontier = int((ws.nodes["end"] - ws.nodes["begin"]).max(initial=0))
        scratch.reserve(longest, int(fanout.max(initial=0)), frontier)
        if self._labor_spec.importance != 0:
            sources = [self._num_nodes[src] for _, src, _ in self._types]
            distinct = max(map(min, totals, sources), default=0)
            scratch.reserve_entries(max(totals, default=0), distinct)
        key = key_of(scratch.begin(request))
        arguments = (self._edges, *ws.tables, scratch.labor, fanout, key)
        ws.expect(0)
        while (t := self._labor.pick_labor(*arguments)) >= 0:
            done = int(ws.found["num_done"][t] + ws.found["total"][t])
            ws.reserve_picked(t, max(2 * done, done + longest + int(fanout[t]) + c.CHUNK), done)

    def _result(self, ws: Workspace, outputs: Outputs, counts: list[list[int]]) -> SampledSubgraph:
        sample = super()._result(ws, outputs, counts)
        if not self._weighs:
            return sample
        weights = {}
        for i, (edge_type, _, _) in enumerate(self._types):
            n = sample.row[edge_type].numel()
            weights[edge_type] = self._empty((n,), torch.float32)
            weights[edge_type].copy_(ws.picked_weights(i, n))
        return replace(sample, edge_weight=weights)


class _Scratch:
    """A spec for the kernels of LABOR, and memory that grows to the largest hop."""

    def __init__(self, spec: LaborSpec) -> None:
        self.spec = spec
        self.labor = np.zeros(1, c.LABOR)
        self.labor["exact"] = spec.method == "exact"
        self.labor["replace"] = spec.replace
        self.labor["weighted"] = spec.weighted
        self.labor["importance"] = spec.importance
        self.labor["same_in_hops"] = spec.layer_dependency
        self.labor["dependency"] = spec.batch_dependency
        self._arrays: dict[str, npt.NDArray[np.generic]] = {}

    def begin(self, request: NodeRequest) -> tuple[int, int, int]:
        """Begin a hop; return the first numbers of its keys."""
        self.labor["at_type"], self.labor["at_node"] = 0, -1
        every = self.spec.batch_dependency
        if every == 0:
            return request.key.seed, 0, 0
        self.labor["shift"] = request.key.batch % every
        return request.key.seed, request.key.epoch, request.key.batch // every

    def reserve(self, longest: int, fanout: int, frontier: int) -> None:
        """Reserve memory for columns up to a length, and for the results of each frontier node."""
        for column in ("variate", "share", "chance"):
            self._reserve(column, longest, np.uint64)
        self._reserve("scratch", fanout, np.uint64)
        self._reserve("scale", frontier, np.float64)
        self._reserve("entry_begin", frontier, np.int64)

    def reserve_entries(self, n: int, distinct: int) -> None:
        """Reserve memory for ``n`` entries of columns that have ``distinct`` neighbours at most."""
        self._reserve("entry", n, np.uint32)
        self._reserve("entry_share", n, np.float64)
        self._reserve("chances", distinct, np.float64)
        self._reserve("factor", distinct, np.float64)
        size = 2 << distinct.bit_length()
        self._reserve("numbers", 2 * size, np.uint64)
        self.labor["numbers_mask"] = size - 1

    def _reserve(self, column: str, n: int, dtype: npt.DTypeLike) -> None:
        array = self._arrays.get(column)
        if array is None or array.size < n:
            array = self._arrays[column] = np.empty(n + n // 4 + 64, dtype)
            self.labor[column] = array.ctypes.data
