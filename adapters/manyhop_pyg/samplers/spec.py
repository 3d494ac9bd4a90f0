"""PyG's sampling arguments -> the engine's specs."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from torch_geometric.sampler import NegativeSampling
from torch_geometric.sampler.base import NumNeighbors, SubgraphType

from manyhop.errors import InputError
from manyhop.graph import HOMOGENEOUS_EDGE, EdgeType
from manyhop.sampling import NegativeSpec, NeighborSpec
from manyhop_pyg.data.convert import Topology
from manyhop_pyg.samplers.negatives import GivenNegatives, TypedNegatives


def make_spec(
    topology: Topology,
    num_neighbors: NumNeighbors,
    *,
    subgraph_type: SubgraphType,
    replace: bool,
    disjoint: bool,
    temporal: Literal["uniform", "last"] | None,
    weighted: bool,
) -> NeighborSpec:
    """The engine's spec, with edge types as the topology has them.

    Raises:
        InputError: fanouts that do not fit the graph, or arguments that contradict each other.
    """
    subgraph = SubgraphType(subgraph_type).value
    reverse = None
    if subgraph == "bidirectional":
        edge_types = list(topology.user_edge_type.values())
        reverse = reverse_types(edge_types) if topology.hetero else {HOMOGENEOUS_EDGE: HOMOGENEOUS_EDGE}
        if topology.backward:
            reverse = {_flip(t): _flip(r) for t, r in reverse.items()}
    fanouts = read_fanouts(num_neighbors, list(topology.user_edge_type.values()), hetero=topology.hetero)
    return NeighborSpec(
        fanouts={ours: fanouts[theirs] for ours, theirs in topology.user_edge_type.items()},
        replace=bool(replace),
        weighted=weighted,
        temporal=temporal,
        disjoint=disjoint,
        subgraph=subgraph,
        reverse=reverse,
    )


def read_fanouts(
    num_neighbors: NumNeighbors, edge_types: Iterable[EdgeType], *, hetero: bool
) -> dict[EdgeType, tuple[int, ...]]:
    """Edge type -> neighbours per node, hop by hop, for all edge types of the graph."""
    values, default = num_neighbors.values, num_neighbors.default
    if not isinstance(values, Mapping):
        return {t: _fanout(values) for t in edge_types}
    if not hetero:
        raise InputError("Expected num_neighbors as a list, such as [15, 10], since the graph has one edge type only.")
    edge_types = list(edge_types)
    known = {"__".join(t): t for t in edge_types}  # NumNeighbors joins names so
    if twice := [t for t in edge_types if known["__".join(t)] != t]:
        raise InputError(
            "Expected num_neighbors as a list in a graph with edge types whose joined names are the same, got a dict: "
            f"{twice[0]} and {known['__'.join(twice[0])]}. Rename one of them."
        )
    if unknown := [str(name) for name in values if name not in known]:
        raise InputError(
            "Not all edge types specified in 'num_neighbors' exist in the graph: "
            f"{unknown[0]!r} is unknown. The graph has: {edge_types}."
        )
    if default is None and (missing := [t for name, t in known.items() if name not in values]):
        raise InputError(
            f"Missing number of neighbors for edge type {missing[0]}. Give one for every edge type ([0, ...] for "
            "none), or NumNeighbors(values, default=[...])."
        )
    return {t: _fanout(values.get(name, default)) for name, t in known.items()}


def as_num_neighbors(num_neighbors: object) -> NumNeighbors:
    """Whatever PyG accepts, as its own class."""
    if isinstance(num_neighbors, NumNeighbors):
        return num_neighbors
    if isinstance(num_neighbors, Mapping):
        try:
            return NumNeighbors({tuple(k) if isinstance(k, list) else k: v for k, v in num_neighbors.items()})
        except (TypeError, ValueError) as error:
            raise InputError(
                "Expected num_neighbors by edge type, such as {('user', 'rates', 'film'): [15, 10]}, got the keys "
                f"{list(num_neighbors)}: {error}. Pass a list for the same numbers with all edge types."
            ) from None
    if isinstance(num_neighbors, list | tuple):
        return NumNeighbors(list(num_neighbors))
    raise InputError(
        "Expected num_neighbors as a list (hop by hop), a dict (edge type -> list) or NumNeighbors, "
        f"got {num_neighbors!r}. One hop of 10 neighbours is [10]."
    )


def _fanout(values: object) -> tuple[int, ...]:
    return integers("numbers of neighbours", values)


def integers(what: str, values: Any) -> tuple[int, ...]:
    """Integers, one per hop; InputError for anything else."""
    try:
        if isinstance(values, str | bytes) or any(isinstance(k, bool) for k in values):
            raise TypeError
        return tuple(operator.index(k) for k in values)
    except TypeError:
        raise InputError(f"Expected a list of integers as {what}, got {values!r}.") from None


def reverse_types(edge_types: list[EdgeType]) -> dict[EdgeType, EdgeType]:
    """Edge type -> the type of its reverses, found as PyG finds them: ``rev_`` names, else the one type that fits."""
    known = set(edge_types)
    reverse: dict[EdgeType, EdgeType] = {}
    for edge_type in edge_types:
        src, rel, dst = edge_type
        if rel.startswith("rev_"):
            continue
        named = (dst, f"rev_{rel}", src)
        fitting = [t for t in edge_types if (t[0], t[2]) == (dst, src)]
        if named in known:
            reverse[edge_type], reverse[named] = named, edge_type
        elif src == dst:
            reverse[edge_type] = edge_type
        elif len(fitting) == 1:
            reverse[edge_type] = fitting[0]
        else:
            warnings.warn(
                f"Cannot convert to bidirectional graph since the edge type {edge_type} does not seem to have a "
                "reverse edge type",
                stacklevel=2,
            )
    return reverse


def _flip(edge_type: EdgeType) -> EdgeType:
    return edge_type[2], edge_type[1], edge_type[0]


def as_negative_sampling(neg_sampling: object) -> NegativeSampling | None:
    """Whatever PyG accepts, as its own class; of a dict by edge type, each value is.

    Raises:
        InputError: anything else.
    """
    if isinstance(neg_sampling, Mapping) and any(isinstance(key, tuple) for key in neg_sampling):
        parts = {edge_type: as_negative_sampling(of_type) for edge_type, of_type in neg_sampling.items()}
        for edge_type in [t for t, of_type in parts.items() if of_type is None]:
            raise InputError(f"Expected neg_sampling for each type, got None for {edge_type}.")
        return TypedNegatives({t: of_type for t, of_type in parts.items() if of_type is not None})
    try:
        return NegativeSampling.cast(neg_sampling)
    except (TypeError, ValueError) as error:
        raise InputError(
            "Expected neg_sampling as 'binary', 'triplet', NegativeSampling or GivenNegatives, got "
            f"{neg_sampling!r}: {error}."
        ) from None


def negative_spec(neg_sampling: NegativeSampling | None, *, exclude_true: bool) -> NegativeSpec | None:
    """The engine's spec of PyG's negative sampling."""
    if neg_sampling is None:
        if exclude_true:
            raise InputError("exclude_true_negatives=True needs negatives to be drawn: pass neg_sampling, too.")
        return None
    if isinstance(neg_sampling, GivenNegatives):
        if exclude_true:
            raise InputError(
                "exclude_true_negatives=True is for negatives that are drawn: given ones are taken as they are."
            )
        return (
            None if neg_sampling.in_batch else NegativeSpec(mode="triplet", amount=neg_sampling.amount or 1, given=True)
        )
    return NegativeSpec(
        mode="triplet" if neg_sampling.is_triplet() else "binary", amount=neg_sampling.amount, exclude_true=exclude_true
    )
