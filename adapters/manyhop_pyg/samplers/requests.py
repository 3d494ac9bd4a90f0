"""What the engine is asked for seeds in PyG's terms: their ids, and their times as time keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

from manyhop.arguments import as_ids, real
from manyhop.errors import InputError
from manyhop.graph import EdgeType, NodeType
from manyhop.sampling import BatchKey, EdgeRequest, NodeRequest
from manyhop_pyg.data.convert import Topology
from manyhop_pyg.samplers.given_negatives import GivenNegatives
from manyhop_pyg.samplers.typed_edges import TypedEdgeInput
from manyhop_pyg.samplers.typed_negatives import negatives_of
from manyhop_pyg.samplers.typed_seeds import ByType

_CPU = torch.device("cpu")


class SeedRequests:
    """Makes the requests of a sampler.

    Args:
        topology: what is sampled.
        time_window: with times, edges are not earlier than the seed's time minus this.
    """

    def __init__(self, topology: Topology, time_window: float | None) -> None:
        self._topology, self._window = topology, time_window
        self._is_temporal = topology.is_temporal

    def of_nodes(self, given: ByType, times: ByType, key: BatchKey) -> NodeRequest:
        """Return what the engine is asked for seeds by type, and their times, as far as given."""
        seeds: dict[NodeType, Tensor] = {}
        time_max: dict[NodeType, Tensor] = {}
        time_min: dict[NodeType, Tensor] = {}
        for name, ids in given.items():
            node_type = self._topology.node_type(name)
            # a call costs more than a look
            seeds[node_type] = ids if ids.dtype == torch.int64 else as_ids("seed nodes", ids).long()
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
        edge_type: EdgeType,
        key: BatchKey,
        neg_sampling: NegativeSampling | None,
        *,
        exclude: Mapping[EdgeType, Tensor] | None = None,
        device: torch.device = _CPU,
    ) -> EdgeRequest:
        """Return what the engine is asked for seed edges; on ``device``, functions of negatives are called."""
        if (index.time is not None) != self._is_temporal:
            raise InputError(
                "Temporal sampling needs a time for every seed edge: pass edge_label_time."
                if self._is_temporal
                else "Times of the seed edges were given, but the sampler has no times: pass time_attr."
            )
        time_max, time_min = (None, None) if index.time is None else self.time_limits(index.time)
        return EdgeRequest(
            key=key,
            edge_type=edge_type,
            src=as_ids("sources of seed edges", index.row).long(),
            dst=as_ids("destinations of seed edges", index.col).long(),
            time_max=time_max,
            time_min=time_min,
            exclude=exclude,
            neg_dst=neg_sampling.of(index, device) if isinstance(neg_sampling, GivenNegatives) else None,
        )

    def of_edge_types(
        self,
        index: TypedEdgeInput,
        edge_types: Sequence[EdgeType],
        key: BatchKey,
        neg_sampling: NegativeSampling | None,
        *,
        exclude: Mapping[EdgeType, Tensor] | None,
        device: torch.device = _CPU,
    ) -> list[EdgeRequest]:
        """Return what the engine is asked for seed edges of several types, the edges to exclude with the first."""
        each = zip(index.parts.items(), edge_types, [exclude] + [None] * len(edge_types), strict=False)
        return [
            self.of_edges(part, t, key, negatives_of(neg_sampling, name), exclude=excluded, device=device)
            for (name, part), t, excluded in each
        ]

    def _seed_time(
        self, node_type: NodeType, seeds: Tensor, time: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """The latest and the earliest time key of each seed: as given, else the seed's own time."""
        if not self._is_temporal:
            if time is not None:
                raise InputError("Times of the seeds were given, but the sampler has no times: pass time_attr.")
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
        """Return the latest and the earliest time key of each seed, ``[n] int64``.

        Args:
            time: ``[n]``, or ``[n, 2]``: the earliest and the latest time.

        Raises:
            InputError: windows that end before they start, or beside ``time_window``.
            GraphError: a time that is NaN.
        """
        start, topology = None, self._topology
        if time.dim() == 2:
            start, time = time.unbind(1)
            if self._window is not None:
                raise InputError(
                    f"Expected one time per seed with time_window={self._window}, got start and end. Pass one of them."
                )
            if bool((start > time).any()):
                at = int((start > time).nonzero()[0])
                raise InputError(
                    f"Expected times [start, end] of each seed, got [{start[at]}, {time[at]}] of seed {at}."
                )
        elif self._window is not None:
            start = time - self._window
        return topology.seed_time(time), None if start is None else topology.seed_time(start, earliest=True)


def check_window(time_window: float | None, *, temporal: bool) -> float | None:
    """Raise InputError unless the window is one."""
    if time_window is None:
        return None
    if not temporal:
        raise InputError(f"Expected time_attr with time_window={time_window}, got None. Pass the name of the times.")
    number = time_window.item() if isinstance(time_window, Tensor) and time_window.dim() == 0 else time_window
    real("time_window", number, "the unit of the times", finite=False)
    return number
