"""Exclusion of seed edges, and optionally their reverses, from the samples around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput
from torch_geometric.sampler.base import SubgraphType

from manyhop.arguments import as_ids, check_range
from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE, EdgeType
from manyhop.sampling.lookup import EdgeIds
from manyhop_pyg.data.convert import Topology
from manyhop_pyg.samplers.neighbor import NeighborSampler
from manyhop_pyg.samplers.seeds import parts_of

ExcludeMode: TypeAlias = Literal["self", "reverse_id", "reverse_types"]
ReverseIds: TypeAlias = Tensor | Mapping[EdgeType, Tensor]
_MODES = get_args(ExcludeMode)


class Exclusion:
    """Finds the edges that a batch excludes, by the endpoints of its seed edges.

    Args:
        topology: the sampled graph.
        of_types: seed edge type (``None`` in homogeneous graphs) -> type of the reverses to exclude (``None``: only the
            seed edges), and ``[num_edges]`` edge id -> id of its reverse (``None``: find reverses by their endpoints).
    """

    def __init__(
        self, topology: Topology, of_types: Mapping[EdgeType | None, tuple[EdgeType | None, Tensor | None]]
    ) -> None:
        self._topology, self._of_types = topology, dict(of_types)
        looked_up = {_type_in_graph(topology, t) for t in of_types}
        looked_up |= {_type_in_graph(topology, t) for t, ids in of_types.values() if t is not None and ids is None}
        self._ids = {t: EdgeIds(csc) for t, csc in topology.graph.csc.items() if t in looked_up}

    def prepare(self) -> None:
        """Build the lookup tables of edges."""
        for ids in self._ids.values():
            ids.tables()

    def of(self, index: EdgeSamplerInput) -> dict[EdgeType, Tensor]:
        """Return edge type of the graph -> ``[n] int64`` ids of the edges that a batch must not have."""
        found: dict[EdgeType, list[Tensor]] = {}
        for edge_type, part in parts_of(index).items():
            ends = (part.col, part.row) if self._topology.backward else (part.row, part.col)
            src, dst = (ids.to("cpu", torch.int64) for ids in ends)
            own = _type_in_graph(self._topology, edge_type)
            reverse_type, reverse_eids = self._of_types[edge_type]
            if own in self._ids:
                ids = self._ids[own].between(src, dst)
                found.setdefault(own, []).append(ids)
                if reverse_eids is not None:
                    found[own].append(reverse_eids[ids])
            reverse = None if reverse_type is None else _type_in_graph(self._topology, reverse_type)
            if reverse in self._ids and reverse_eids is None:
                found.setdefault(reverse, []).append(self._ids[reverse].between(dst, src))
        return {t: ids[0] if len(ids) == 1 else torch.cat(ids) for t, ids in found.items()}


def make_exclusion(
    sampler: BaseSampler,
    edge_types: Sequence[EdgeType | None],
    mode: ExcludeMode | None,
    reverse_eids: ReverseIds | None,
    reverse_etypes: Mapping[EdgeType, EdgeType] | None,
) -> Exclusion | None:
    """Return the exclusion of a loader's arguments; ``None``: no edges."""
    if mode is not None and mode not in _MODES:
        raise InputError(f"Expected exclude_seed_edges to be None or one of {_MODES}, got {mode!r}.")
    for name, given, wanted in (
        ("reverse_eids", reverse_eids, "reverse_id"),
        ("reverse_etypes", reverse_etypes, "reverse_types"),
    ):
        if given is not None and mode != wanted:
            raise InputError(f"{name} is for exclude_seed_edges={wanted!r}, got {mode!r}: leave {name} out.")
    if mode is None:
        return None
    if not isinstance(sampler, NeighborSampler):
        raise InputError(
            f"exclude_seed_edges={mode!r} needs a manyhop_pyg.NeighborSampler, got a "
            f"{type(sampler).__name__}. Leave exclude_seed_edges out, or use LinkNeighborLoader."
        )
    if mode == "self" and sampler.subgraph_type == SubgraphType.bidirectional:
        raise InputError(
            "subgraph_type='bidirectional' adds the reverses of sampled edges, seed edges among them. Expected "
            "exclude_seed_edges='reverse_id' or 'reverse_types' with it, got 'self'."
        )
    of_types: dict[EdgeType | None, tuple[EdgeType | None, Tensor | None]] = {}
    for edge_type in edge_types:
        reverse_type, ids = None, None
        if mode == "reverse_id":
            reverse_type = edge_type or HOMOGENEOUS_EDGE
            ids = _reverse_ids(sampler.topology, edge_type, reverse_eids)
        elif mode == "reverse_types":
            reverse_type = _reverse_type(sampler.topology, edge_type, reverse_etypes)
        of_types[edge_type] = reverse_type, ids
    return Exclusion(sampler.topology, of_types)


def _type_in_graph(topology: Topology, edge_type: EdgeType | None) -> EdgeType:
    if not topology.hetero or edge_type is None:
        return HOMOGENEOUS_EDGE
    src, name, dst = edge_type
    return (dst, name, src) if topology.backward else edge_type


def _reverse_ids(topology: Topology, edge_type: EdgeType | None, given: ReverseIds | None) -> Tensor | None:
    if edge_type is not None and edge_type[0] != edge_type[2]:
        raise InputError(
            f"exclude_seed_edges='reverse_id' is for edges between nodes of one type, got seed edges of {edge_type}. "
            "Use 'reverse_types' with reverse_etypes={edge type: type of its reverses}."
        )
    if isinstance(given, Mapping):
        if edge_type is None or edge_type not in given:
            raise InputError(f"Expected reverse_eids for the seed edges' type {edge_type}, got {list(given)}.")
        given = given[edge_type]
    if given is None:
        return None
    graph_type = _type_in_graph(topology, edge_type)
    n = topology.graph.num_edges(graph_type) if graph_type in topology.graph.csc else 0
    ids = as_ids("reverse_eids", given)
    if ids.numel() != n:
        raise InputError(f"Expected reverse_eids of shape [{n}], one per edge, got {list(ids.shape)}.")
    check_range("reverse_eids", ids, n, advice="An edge without a reverse has its own id.")
    return ids.to("cpu", torch.int64)


def _reverse_type(
    topology: Topology, edge_type: EdgeType | None, given: Mapping[EdgeType, EdgeType] | None
) -> EdgeType:
    if edge_type is None:
        raise InputError(
            "exclude_seed_edges='reverse_types' is for graphs with edge types, and this one has none. Use 'reverse_id'."
        )
    if not isinstance(given, Mapping) or edge_type not in given:
        got = list(given) if isinstance(given, Mapping) else repr(given)
        raise InputError(
            f"exclude_seed_edges='reverse_types' needs reverse_etypes={{edge type: type of its reverses}} for the seed "
            f"edges' type {edge_type}, got {got}."
        )
    reverse, known = given[edge_type], list(topology.user_edge_type.values())
    if reverse not in known:
        raise InputError(f"Unknown edge type {reverse!r} in reverse_etypes. The graph has: {known}.")
    if (reverse[0], reverse[2]) != (edge_type[2], edge_type[0]):
        raise InputError(
            f"Expected the reverses of {edge_type} to lead from '{edge_type[2]}' to '{edge_type[0]}', got {reverse}."
        )
    return reverse
