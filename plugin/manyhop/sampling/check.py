"""Checks of specs against graphs, and of requests against specs, for every backend."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise

import torch
from torch import Tensor

from manyhop.arguments import check_range
from manyhop.errors import GraphError, InputError
from manyhop.graph import CSC, EdgeType, Graph, NodeType
from manyhop.graph.csc import of_type
from manyhop.sampling.contract import (
    EdgeRequest,
    HGTSpec,
    LaborSpec,
    NegativeSpec,
    NeighborSpec,
    NodeRequest,
    PageRankSpec,
    WalkSpec,
)
from manyhop.system.arrays import describe, has_memory

Spec = NeighborSpec | HGTSpec | LaborSpec | WalkSpec | PageRankSpec

UNBIASED = "Leave p and q 1."
"""Remedy if biased walks are impossible."""
_MOST_PICKS, _MOST_FANOUT = 1 << 31, 1 << 62
_MOST_NEIGHBORS = 1 << 10  # a GPU chooses in registers


def check_spec(graph: Graph, spec: Spec) -> None:
    """Raise InputError or GraphError if a spec contradicts itself or the graph."""
    match spec:
        case NeighborSpec():
            _check_neighbor_spec(graph, spec)
        case HGTSpec():
            _check_hgt_spec(graph, spec)
        case LaborSpec():
            _check_labor_spec(graph, spec)
        case WalkSpec():
            _check_walk_spec(graph, spec)
        case PageRankSpec():
            _check_page_rank_spec(graph, spec)


def _one_of(**given: tuple[object, tuple[object, ...]]) -> None:
    for name, (value, choices) in given.items():
        if value not in choices:
            raise InputError(f"Expected {name} to be one of {choices}, got {value!r}.")


def _weights_if(weighted: bool, what: str, graph: Graph) -> None:
    if weighted and all(csc.alias is None for csc in graph.csc.values()):
        raise GraphError(f"{what} weights, but no edge type of the graph has any. Build it with them.")


def _check_neighbor_spec(graph: Graph, spec: NeighborSpec) -> None:
    _check_fanouts(graph, spec.fanouts, replace=spec.replace)
    _one_of(
        temporal=(spec.temporal, ("uniform", "last", None)),
        expand=(spec.expand, ("new", "all")),
        subgraph=(spec.subgraph, ("directional", "bidirectional", "induced")),
    )
    if spec.temporal is not None and not spec.disjoint:
        raise InputError("Temporal sampling keeps one tree per seed: pass disjoint=True with temporal.")
    if spec.temporal == "last" and spec.weighted:
        raise InputError("temporal='last' ignores weights: use temporal='uniform', or drop the weights.")
    if spec.temporal is not None and all(csc.time is None for csc in graph.csc.values()):
        raise GraphError("Temporal sampling needs times, but no edge type of the graph has any. Build it with times.")
    _weights_if(spec.weighted, "Weighted sampling needs", graph)
    if (spec.reverse is not None) != (spec.subgraph == "bidirectional"):
        raise InputError("Pass reverse (edge type -> edge type of its reverses) with subgraph='bidirectional', only.")
    for t, r in (spec.reverse or {}).items():
        _known("reverse", "edge type", (t, r), graph.edge_types)
        if (t[0], t[2]) != (r[2], r[0]):
            raise InputError(f"Expected the reverse of {t} to lead from '{t[2]}' to '{t[0]}', got {r}.")


def _check_labor_spec(graph: Graph, spec: LaborSpec) -> None:
    _check_fanouts(graph, spec.fanouts, replace=spec.replace)
    _one_of(method=(spec.method, ("poisson", "exact")), expand=(spec.expand, ("new", "all")))
    if spec.importance < -1 or spec.batch_dependency < 0:
        raise InputError(
            "Expected importance of -1 (until convergence) or more, and batch_dependency of 0 (always the same) or "
            f"more, got {spec.importance} and {spec.batch_dependency}."
        )
    if spec.method == "exact" and spec.importance != 0:
        raise InputError("Importance requires method='poisson': leave it 0, or use that method.")
    if spec.method == "poisson" and spec.replace:
        raise InputError("Poisson sampling never picks an edge twice: leave replace out, or use method='exact'.")
    _weights_if(spec.weighted, "Weighted sampling needs", graph)


def _check_fanouts(graph: Graph, fanouts: Mapping[EdgeType, tuple[int, ...]], *, replace: bool) -> None:
    _same_keys("fanouts", "edge type", fanouts, graph.edge_types)
    hops = {len(fanout) for fanout in fanouts.values()}
    if len(hops) > 1:
        got = {t: len(f) for t, f in fanouts.items()}
        raise InputError(f"Number of hops must be the same across all edge types, got {got}. Pad the shorter with 0.")
    for edge_type, fanout in fanouts.items():
        for k in fanout:
            if k < -1:
                raise InputError(
                    f"Expected fanouts of -1 (all neighbours), 0 (none) or more, got {k}{of_type(edge_type)}. "
                    "Use -1 for all neighbours."
                )
            if k >= (_MOST_PICKS if replace else _MOST_FANOUT):
                remedy = "So many edges of one node fit nowhere." if replace else "Use -1 for all neighbours."
                raise InputError(f"Expected smaller fanouts, got {k}{of_type(edge_type)}. {remedy}")


def _check_hgt_spec(graph: Graph, spec: HGTSpec) -> None:
    _same_keys("num_samples", "node type", spec.num_samples, graph.node_types)
    hops = {len(n) for n in spec.num_samples.values()}
    if len(hops) > 1:
        got = {t: len(n) for t, n in spec.num_samples.items()}
        raise InputError(f"Expected the same number of hops for all node types, got {got}. Pad the shorter with 0.")
    for node_type, numbers in spec.num_samples.items():
        if any(n < 0 for n in numbers):
            raise InputError(f"Expected num_samples of 0 or more, got {list(numbers)} for '{node_type}'.")
    limit = spec.max_neighbors
    if limit is not None and (type(limit) is not int or not 1 <= limit <= _MOST_NEIGHBORS):
        raise InputError(
            f"Expected max_neighbors as an integer from 1 to {_MOST_NEIGHBORS}, got {limit!r}. Pass None for no limit."
        )


def _check_walk_spec(graph: Graph, spec: WalkSpec) -> None:
    if not spec.steps:
        raise InputError("Expected walks of at least one step, got none. Name an edge type for each step.")
    _known("steps", "edge type", spec.steps, graph.edge_types)
    for first, then in pairwise(spec.steps):
        if first[0] != then[2]:
            raise InputError(
                f"Expected each step to begin where the one before leads to ('{first[0]}'), got {then} after {first}. "
                "A step leads from the destination type of its edge type to the source type."
            )
    if not all(math.isfinite(x) and x > 0 for x in (spec.p, spec.q)):
        raise InputError(f"Expected p and q to be positive numbers, got {spec.p} and {spec.q}. Pass 1 for no bias.")
    if (spec.p, spec.q) != (1, 1) and (len(set(spec.steps)) > 1 or spec.steps[0][0] != spec.steps[0][2]):
        raise InputError(
            "Expected p and q only if all steps have the same edge type, between nodes of one type, got "
            f"{spec.steps}. {UNBIASED}"
        )
    stop = spec.stop
    if stop is not None and (len(stop) != len(spec.steps) or not all(0 <= x <= 1 for x in stop)):
        raise InputError(f"Expected stop as {len(spec.steps)} probabilities, one per step, got {stop}.")
    _weights_if(spec.weighted, "Weighted walks need", graph)


def _check_page_rank_spec(graph: Graph, spec: PageRankSpec) -> None:
    _known("edge_type", "edge type", (spec.edge_type,), graph.edge_types)
    if spec.edge_type[0] != spec.edge_type[2]:
        raise InputError(f"Expected an edge type from a node type to itself, got {spec.edge_type}. Name another.")
    if not 0 < spec.alpha <= 1:
        raise InputError(f"Expected alpha above 0 and at most 1, got {spec.alpha}: walks end with this probability.")
    if not (spec.eps > 0 and math.isfinite(spec.eps)):
        raise InputError(f"Expected eps as a positive number, got {spec.eps}: with 0, pushing never ends.")
    if spec.top_k is not None and spec.top_k < 1:
        raise InputError(f"Expected top_k of at least 1, got {spec.top_k}. Pass None for all neighbours.")


def check_request(
    graph: Graph, spec: NeighborSpec | HGTSpec | LaborSpec, request: NodeRequest, *, in_range: bool = True
) -> None:
    """Raise InputError if a batch of seeds does not fit the graph or the spec; the range of ids is optional."""
    temporal = isinstance(spec, NeighborSpec) and spec.temporal is not None
    if temporal and request.time_max is None:
        raise InputError("Temporal sampling needs the time of each seed: pass time_max with the request.")
    if not temporal and (request.time_max is not None or request.time_min is not None):
        raise InputError("Expected no seed times, as the sampler is not temporal: build it with temporal='uniform'.")
    if request.time_min is not None and request.time_max is None:
        raise InputError("Expected time_max with time_min. Pass both.")
    if request.exclude is not None:
        if isinstance(spec, HGTSpec):
            raise InputError("HGT sampling cannot exclude edges: leave exclude out of the request.")
        _known("exclude", "edge type", request.exclude, graph.edge_types)
        for edge_type, ids in request.exclude.items():
            if ids.dtype != torch.int64 or ids.dim() != 1 or not has_memory(ids):
                raise _wrong_ids(f"ids of edges to exclude{of_type(edge_type)}", ids)
    for node_type, seeds in request.seeds.items():
        if node_type not in graph.num_nodes:
            _known("seeds", "node type", (node_type,), graph.node_types)
        check_ids("seed nodes", seeds, graph, node_type, in_range=in_range)
        for name, by_type in (("time_max", request.time_max), ("time_min", request.time_min)):
            if by_type is not None:
                _check_times(name, by_type.get(node_type), seeds, of_type(node_type))


def check_seed_edges(
    graph: Graph,
    edge_type: EdgeType,
    request: EdgeRequest,
    negatives: NegativeSpec | None,
    *,
    disjoint: bool,
    in_range: bool = True,
) -> None:
    """Raise InputError if a batch of seed edges does not fit the sampler of a type; the range of ids is optional.

    Excluded edges are checked when nodes are sampled: seed edges may have a type without edges in the graph.
    """
    if request.edge_type != edge_type:
        raise InputError(f"Expected seed edges of type {edge_type}, got {request.edge_type}.")
    if request.src.shape != request.dst.shape:
        raise InputError(
            f"Expected as many sources as destinations, got {request.src.numel()} and {request.dst.numel()}."
        )
    _check_given(request, negatives)
    src_type, _, dst_type = request.edge_type
    if request.neg_dst is not None:
        ids = request.neg_dst.reshape(-1)
        check_ids("destinations of negatives", ids, graph, dst_type, in_range=in_range)
    check_ids("source nodes", request.src, graph, src_type, in_range=in_range)
    check_ids("destination nodes", request.dst, graph, dst_type, in_range=in_range)
    for name, times in (("time_max", request.time_max), ("time_min", request.time_min)):
        if times is not None:
            _check_times(name, times, request.src)
    if request.time_min is not None and request.time_max is None:
        raise InputError("Expected time_max with time_min. Pass both.")
    if request.time_max is not None and not disjoint:
        raise InputError("Times of seed edges need one tree per endpoint: build the samplers with disjoint=True.")


def _check_given(request: EdgeRequest, negatives: NegativeSpec | None) -> None:
    given = negatives is not None and negatives.given
    if not given and request.neg_dst is None:
        return
    if negatives is None or not given or request.neg_dst is None:
        raise InputError("Pass neg_dst with the request where negatives have given=True, only.")
    expected = (request.src.numel(), int(negatives.amount))
    if tuple(request.neg_dst.shape) != expected:
        raise InputError(
            f"Expected negatives of shape {list(expected)}, a row of destinations per seed edge, got "
            f"{list(request.neg_dst.shape)}."
        )


def check_negatives(
    graph: Graph,
    edge_type: EdgeType,
    spec: NegativeSpec | None,
    *,
    src_weight: Tensor | None,
    dst_weight: Tensor | None,
) -> None:
    """Raise InputError where negatives, or the weights to draw them with, do not make sense."""
    _known("edge_type", "edge type", (edge_type,), graph.edge_types)
    if spec is None:
        if src_weight is not None or dst_weight is not None:
            raise InputError("Weights of nodes are for negatives only: pass negatives, or leave the weights out.")
        return
    if spec.mode not in ("binary", "triplet"):
        raise InputError(f"Expected the mode of negatives to be 'binary' or 'triplet', got {spec.mode!r}.")
    if not (spec.amount > 0 and math.isfinite(spec.amount)):
        raise InputError(f"Expected a positive number of negatives per edge, got amount={spec.amount}.")
    if spec.mode == "triplet" and spec.amount != math.ceil(spec.amount):
        raise InputError(f"Expected a whole number of negatives per edge for triplets, got amount={spec.amount}.")
    if spec.mode == "triplet" and src_weight is not None:
        raise InputError("Triplets draw destinations only: leave src_weight out, or use mode='binary'.")
    if spec.given and (spec.mode != "triplet" or spec.exclude_true or dst_weight is not None):
        raise InputError(
            "Given negatives are destinations, used unchanged: pass mode='triplet' with given=True, without weights "
            "and exclude_true."
        )


def check_ids(what: str, ids: Tensor, graph: Graph, node_type: NodeType, *, in_range: bool = True) -> None:
    """Raise InputError unless ``ids`` is ``[n] int64``, with ``in_range`` ids of nodes of the type.

    Ids of a type without nodes are always rejected: kernels replace bad ids by node 0, which does not exist then.
    """
    if ids.dtype != torch.int64 or ids.dim() != 1 or not has_memory(ids):  # kernels read tensors by their address
        raise _wrong_ids(what, ids)
    num_nodes = graph.num_nodes[node_type]
    if in_range or num_nodes == 0:
        advice = "Check the ids, or the number of nodes that the graph was built with."
        check_range(f"{what}{of_type(node_type)}", ids, num_nodes, advice=advice)


def _wrong_ids(what: str, ids: Tensor) -> InputError:
    return InputError(f"Expected {what} as a 1-dimensional int64 tensor in memory, got {describe(ids)}. Convert it.")


def _check_times(name: str, times: Tensor | None, seeds: Tensor, of: str = "") -> None:
    if times is None or times.dtype != torch.int64 or times.shape != seeds.shape or not has_memory(times):
        got = "nothing" if times is None else describe(times)
        raise InputError(
            f"Expected {name} as an int64 tensor of shape {list(seeds.shape)} in memory, one per seed{of}, got {got}."
        )


def table_addresses(
    edge_type: EdgeType, csc: CSC, device: torch.device, *, timed: bool = True, weighted: bool = True
) -> dict[str, int]:
    """Return the addresses of the tables of an edge type for kernels on a device; 0 without a table, or if not read.

    Raises:
        GraphError: the device cannot read a table, or it has another dtype or layout.
    """
    ids, long = (torch.int32, torch.int64), (torch.int64,)
    tables = {
        "colptr": (csc.colptr, long),
        "row": (csc.row, ids),
        "perm": (csc.perm, ids),
        "time": (csc.time if timed else None, long),
        "weight": (csc.weight if weighted else None, (torch.float64,)),
        "alias": (csc.alias if weighted else None, long),
        "num_positive": (csc.num_positive if weighted else None, long),
    }
    return {name: address(f"{name}{of_type(edge_type)}", table, device, *d) for name, (table, d) in tables.items()}


def address(what: str, table: Tensor | None, device: torch.device, *dtypes: torch.dtype) -> int:
    """Return the address of a table of the graph for kernels; see :func:`table_addresses`."""
    if table is None:
        return 0
    readable = table.device == device or (device.type == "cuda" and table.is_pinned())
    if not readable or table.dtype not in dtypes or not table.is_contiguous():
        pinned = " or in pinned memory" if device.type == "cuda" else ""
        raise GraphError(
            f"Expected {what} contiguous on {device}{pinned}, of dtype {' or '.join(map(str, dtypes))}, got "
            f"{table.dtype} on {table.device}. Build the graph with manyhop.graph.build_graph, and move it with "
            "manyhop.graph.place."
        )
    return table.data_ptr()


def _same_keys(
    name: str, kind: str, given: Mapping[NodeType, object] | Mapping[EdgeType, object], expected: Iterable[object]
) -> None:
    expected = tuple(expected)
    _known(name, kind, tuple(given), expected)
    missing = [k for k in expected if k not in given]
    if missing:
        raise InputError(f"Expected {name} for every {kind}; missing: {missing}.")


def _known(name: str, kind: str, given: Iterable[object], expected: Iterable[object]) -> None:
    unknown = [k for k in given if k not in tuple(expected)]
    if unknown:
        raise InputError(f"Unknown {kind} {unknown[0]!r} in {name}. The graph has: {list(expected)}.")
