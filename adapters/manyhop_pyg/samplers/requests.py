"""Seed nodes in PyG's classes, and inputs of PyG as requests of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput

from manyhop.arguments import as_ids, real
from manyhop.errors import InputError
from manyhop.features import BufferPool
from manyhop.graph import HOMOGENEOUS_NODE, EdgeType, Graph, NodeType
from manyhop.ranks import cuda
from manyhop.sampling import BatchKey, EdgeRequest, NodeRequest
from manyhop.sampling.contract import Engine
from manyhop.sampling.cpu.sampler import HostEngine
from manyhop.sampling.engines import Spec, engine_for
from manyhop_pyg.data.convert import Topology
from manyhop_pyg.samplers.seeds import parts_of
from manyhop_pyg.samplers.spec import GivenNegatives, negatives_of
from manyhop_pyg.typing import Metadata

_CPU = torch.device("cpu")
InputsT = TypeVar("InputsT", NodeSamplerInput, EdgeSamplerInput)
ByType: TypeAlias = dict[NodeType | None, Tensor]


class TypedNodeInput(NodeSamplerInput):  # type: ignore[misc]  # PyG is untyped
    """PyG's ``NodeSamplerInput`` for seeds of multiple types, type by type; ``sizes``: number of seeds of each type."""

    def __init__(
        self, input_id: Tensor, node: Tensor, time: Tensor | None, node_types: tuple[NodeType, ...], sizes: list[int]
    ) -> None:
        super().__init__(input_id, node, time, node_types)
        self.sizes = sizes

    def __getitem__(self, index: Tensor | list[int]) -> TypedNodeInput:
        """Return the seeds at positions, sorted by type."""
        index = torch.as_tensor(index, dtype=torch.int64)
        ends = torch.tensor(list(accumulate(self.sizes)))
        kind = torch.searchsorted(ends, index, right=True)
        index = index[kind.sort(stable=True).indices]
        return TypedNodeInput(
            self.input_id[index],
            self.node[index],
            None if self.time is None else self.time[index],
            self.input_type,
            kind.bincount(minlength=len(self.sizes)).tolist(),
        )


def input_of(kind: type[InputsT], attributes: dict[str, object]) -> InputsT:
    """Create PyG's sampler input without its constructor, which would copy each tensor to the CPU."""
    one = object.__new__(kind)
    one.__dict__.update(attributes)
    return one


def seeds_of(index: NodeSamplerInput) -> tuple[ByType, ByType]:
    """Return the seed nodes by type (``None`` in homogeneous graphs), and their times, if given."""
    if not isinstance(index, TypedNodeInput):
        return {index.input_type: index.node}, {} if index.time is None else {index.input_type: index.time}
    columns = (None if column is None else column.split(index.sizes) for column in (index.node, index.time))
    node, time = ({} if parts is None else dict(zip(index.input_type, parts, strict=True)) for parts in columns)
    return node, time


def node_metadata(index: NodeSamplerInput, input_id: Tensor | None, time: Tensor | None) -> Metadata:
    """Return ``metadata`` of the sample of seed nodes, whose ids and times may be on another device by now."""
    if isinstance(index, TypedNodeInput):
        return input_id, time, dict(zip(index.input_type, index.sizes, strict=True))
    return input_id, time


class SeedRequests:
    """Converts PyG's sampler inputs to requests of the engine. With ``time_window``, neighbours are at most so old."""

    def __init__(self, topology: Topology, time_window: float | None) -> None:
        if isinstance(time_window, Tensor) and time_window.dim() == 0:
            time_window = time_window.item()
        if time_window is not None:
            if not topology.is_temporal:
                raise InputError(f"Expected time_attr with time_window={time_window}, got None. Name the times.")
            real("time_window", time_window, "the unit of the times", finite=False)
        self._topology, self.window = topology, time_window
        self._is_temporal = topology.is_temporal
        self.node_types: dict[NodeType | None, NodeType] = {t: t for t in topology.graph.node_types}
        if not topology.hetero:
            self.node_types = {None: HOMOGENEOUS_NODE}
        """The graph's node types by the user's."""

    def of_nodes(self, given: ByType, times: ByType, key: BatchKey) -> NodeRequest:
        """Return the request for seeds by type and their times, if given."""
        seeds: dict[NodeType, Tensor] = {}
        time_max: dict[NodeType, Tensor] = {}
        time_min: dict[NodeType, Tensor] = {}
        for name, ids in given.items():
            node_type = self.node_types.get(name) or self._topology.node_type(name)
            usual = type(ids) is Tensor and ids.dtype == torch.int64  # the engine checks the rest
            seeds[node_type] = ids if usual else as_ids("seed nodes", ids).long()
            if not self._is_temporal and not times:  # the usual case, quickly
                continue
            latest, earliest = self._seed_time(node_type, seeds[node_type], times.get(name))
            if latest is not None:
                time_max[node_type] = latest
            if earliest is not None:
                time_min[node_type] = earliest
        return NodeRequest(key=key, seeds=seeds, time_max=time_max or None, time_min=time_min or None)

    def of_edges(
        self,
        index: EdgeSamplerInput,
        edge_types: Sequence[EdgeType],
        key: BatchKey,
        neg_sampling: NegativeSampling | None,
        *,
        exclude: Mapping[EdgeType, Tensor] | None = None,
        device: torch.device = _CPU,
    ) -> list[EdgeRequest]:
        """Return one request per seed edge type; the first one has the edges to exclude.

        Functions of negatives are called on ``device``.
        """
        each = zip(parts_of(index).items(), edge_types, strict=True)
        requests = [self._of_type(part, t, key, negatives_of(neg_sampling, name), device) for (name, part), t in each]
        return [replace(requests[0], exclude=exclude), *requests[1:]]

    def _of_type(
        self,
        index: EdgeSamplerInput,
        edge_type: EdgeType,
        key: BatchKey,
        neg_sampling: NegativeSampling | None,
        device: torch.device,
    ) -> EdgeRequest:
        if (index.time is not None) != self._is_temporal:
            raise InputError(
                "Temporal sampling needs a time for every seed edge: pass edge_label_time."
                if self._is_temporal
                else "Got times of the seed edges, but the sampler has no times: pass time_attr."
            )
        time_max, time_min = (None, None) if index.time is None else self.time_limits(index.time)
        return EdgeRequest(
            key=key,
            edge_type=edge_type,
            src=as_ids("sources of seed edges", index.row).long(),
            dst=as_ids("destinations of seed edges", index.col).long(),
            time_max=time_max,
            time_min=time_min,
            neg_dst=neg_sampling.of(index, device) if isinstance(neg_sampling, GivenNegatives) else None,
        )

    def _seed_time(
        self, node_type: NodeType, seeds: Tensor, time: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the latest and the earliest time key of each seed, by default from the seed's own time."""
        if not self._is_temporal:
            if time is not None:
                raise InputError("Got times of the seeds, but the sampler has no times: pass time_attr.")
            return None, None
        if time is None:
            own = self._topology.node_time.get(node_type)
            if own is None:
                raise InputError(
                    "Temporal sampling needs a time for every seed, but the seed nodes have none of their own: "
                    "pass input_time."
                )
            time = own[seeds]
        return self.time_limits(time)

    def time_limits(self, time: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the latest and the earliest time key of each seed ``[n] int64``.

        ``time`` is ``[n]``, or ``[n, 2]``: the earliest and the latest time.
        """
        start, topology = None, self._topology
        if time.dim() == 2:
            start, time = time.unbind(1)
            if self.window is not None:
                raise InputError(
                    f"Expected one time per seed with time_window={self.window}, got start and end. Pass one of them."
                )
            if bool((start > time).any()):
                at = int((start > time).nonzero()[0])
                raise InputError(
                    f"Expected times [start, end] of each seed, got [{start[at]}, {time[at]}] of seed {at}."
                )
        elif self.window is not None and (topology.floating_time or time.is_floating_point()):
            start = (time if time.is_floating_point() else time.double()) - self.window
        elif self.window is not None:  # floats would round times of 2**24 and more
            start = time.long() - int(min(self.window, 1 << 62))
        return topology.seed_time(time), None if start is None else topology.seed_time(start, earliest=True)


def host_engine(graph: Graph, spec: Spec) -> Engine:
    """Return an engine of the CPU whose samples are in recycled memory."""
    engine = engine_for(graph, spec, empty=BufferPool().empty)
    if not (cuda.in_reach() or graph.is_part):  # otherwise the loader prepares it once its device is known
        prepare(engine)
    return engine


def prepare(engine: object) -> None:
    """Build the tables of one of manyhop's engines before the first batch."""
    if isinstance(engine, HostEngine):
        engine.prepare()
