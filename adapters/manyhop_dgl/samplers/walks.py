"""DGL's random walks over the engine; a ``manyhop_dgl.Graph`` needs no DGL."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from manyhop.arguments import flag, integer
from manyhop.errors import InputError
from manyhop.sampling import BatchKey, WalkRequest, Walks, WalkSpec
from manyhop.sampling.walks import Walker
from manyhop_dgl.graph.topology import Topology, canonical, topology_of
from manyhop_dgl.samplers.arguments import Keys, as_ids, check_name
from manyhop_dgl.typing import EdgeName, GraphLike

_keys = Keys(None)


def random_walk(
    g: GraphLike,
    nodes: object,
    *,
    metapath: Sequence[EdgeName] | None = None,
    length: int | None = None,
    prob: str | None = None,
    restart_prob: float | Tensor | None = None,
    return_eids: bool = False,
) -> tuple[Tensor, ...]:
    """Walk along the edges, from source to destination: DGL's ``random_walk``.

    Each call draws a key, which ``dgl.seed`` fixes, and ``torch.manual_seed`` if that was never called. Walks are
    made on the device of ``nodes``, the same ones everywhere; a GPU keeps a copy of the edges.

    Args:
        g: a ``DGLGraph`` on the CPU or a ``manyhop_dgl.Graph``.
        nodes: ``[num_walks]`` ids of the nodes where walks start, on the CPU or on a GPU.
        metapath: the edge type of each step. Excludes ``length``.
        length: number of steps, in a graph of one edge type.
        prob: name of edge data: weights of steps. Edge types without it: uniformly.
        restart_prob: probability that a walk ends before each step: a number, or ``[num_steps]``.
        return_eids: whether the result has edge ids.

    Returns:
        ``traces [num_walks, num_steps + 1]``: the nodes, -1 after the end of a walk; with ``return_eids``, ``eids
        [num_walks, num_steps]``: the edges, or -1; ``types [num_steps + 1]``: the node type of each column, its
        position in ``g.ntypes``. All of the graph's ``idtype``, on the device of ``nodes``.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
        GraphError: data for ``prob`` that is missing or wrong.
    """
    topology = _topology(g, prob)
    return_eids = flag("return_eids", return_eids)
    if (metapath is None) == (length is None):
        raise InputError(f"Expected either metapath or length, got metapath={metapath!r} and length={length!r}.")
    if length is not None:
        path: Sequence[EdgeName] = [_only_edge_type(topology)] * integer("length", length, 1)
    else:
        path = metapath or ()
    spec = walk_spec(topology, path, restart_prob, edge_ids=return_eids)
    walks = walk(topology, spec, nodes, _keys.next())
    ends = [spec.steps[0][2], *(step[0] for step in spec.steps)]
    types = torch.tensor([topology.graph.node_types.index(t) for t in ends], dtype=topology.index_dtype)
    types = types.to(walks.node.device)
    return (*_tensors(walks, topology), types)


def node2vec_random_walk(
    g: GraphLike,
    nodes: object,
    p: float,
    q: float,
    walk_length: int,
    prob: str | None = None,
    return_eids: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """Walk by the rules of node2vec (arXiv 1607.00653): DGL's ``node2vec_random_walk``.

    With ``p`` or ``q``, a table of the edges, sorted, takes 4 to 8 bytes per edge; it is kept for the next call with
    the same arguments.

    Args:
        g: a ``DGLGraph`` on the CPU or a ``manyhop_dgl.Graph``.
        nodes: ``[num_walks]`` ids of the nodes where walks start, on the CPU or on a GPU.
        p: return parameter: a step back to the node before counts ``1 / p``.
        q: in-out parameter: a step to a node without an edge to the node before counts ``1 / q``.
        walk_length: number of steps.
        prob: name of edge data: weights of steps, multiplied by these.
        return_eids: whether the result has edge ids.

    Returns:
        ``traces [num_walks, walk_length + 1]``; with ``return_eids``, these and ``eids [num_walks, walk_length]``; as
        of :func:`random_walk`.

    Raises:
        InputError: arguments that do not make sense or do not fit the graph.
        GraphError: data for ``prob`` that is missing or wrong.
        CapacityError: the table of edges does not fit in memory.
    """
    topology = _topology(g, prob)
    path = [_only_edge_type(topology)] * integer("walk_length", walk_length, 1)
    return_eids = flag("return_eids", return_eids)
    spec = walk_spec(topology, path, None, p=p, q=q, edge_ids=return_eids)
    found = _tensors(walk(topology, spec, nodes, _keys.next()), topology)
    return found if return_eids else found[0]


def walk_spec(
    topology: Topology,
    metapath: Sequence[EdgeName],
    restart_prob: float | Tensor | None,
    *,
    p: float = 1.0,
    q: float = 1.0,
    edge_ids: bool = False,
) -> WalkSpec:
    """Return how the engine walks along a metapath, whose edges the topology has reversed.

    Raises:
        InputError: a metapath that is empty, or of unknown types; probabilities of wrong number or range.
    """
    if isinstance(metapath, str) or len(metapath) == 0:
        raise InputError(f"Expected metapath as a list of at least one edge type, got {metapath!r}.")
    steps = tuple(topology.edge_types[canonical(t, topology.edge_types, "metapath")] for t in metapath)
    stop = None if restart_prob is None else _probabilities(restart_prob, len(steps))
    return WalkSpec(steps=steps, p=p, q=q, weighted=topology.weighted, stop=stop, edge_ids=edge_ids)


def walk(topology: Topology, spec: WalkSpec, nodes: object, key: BatchKey) -> Walks:
    """Walk from nodes, as the function of a key that it is.

    Raises:
        InputError: a spec that does not make sense; nodes that are not ids, or out of range.
        CapacityError: too little memory of a GPU.
    """
    start = as_ids(nodes, "start nodes of walks")
    return walk_sampler(topology, spec).sample(WalkRequest(key=key, start=start))


def walk_sampler(topology: Topology, spec: WalkSpec) -> Walker:
    """Return the sampler of a spec; the latest one is cached, with its table of edges.

    Raises:
        InputError: a spec that does not make sense.
    """
    for sampler in topology.latest_walks:
        if sampler.spec == spec:
            return sampler
    sampler = Walker(topology.graph, spec)
    topology.latest_walks[:] = [sampler]
    return sampler


def _probabilities(given: float | Tensor, num_steps: int) -> tuple[float, ...]:
    try:
        found = torch.as_tensor(given, dtype=torch.float64).expand(num_steps)
        if bool(((found >= 0) & (found <= 1)).all()):
            return tuple(found.tolist())
    except (TypeError, ValueError, RuntimeError):  # wrong type or number
        pass
    raise InputError(
        f"Expected restart_prob as a number from 0 to 1, or a tensor of {num_steps} such numbers, one per step, got "
        f"{given!r}."
    )


def _topology(g: GraphLike, prob: str | None) -> Topology:
    check_name(prob, "prob")
    return topology_of(g, edge_dir="out", prob=prob)


def _only_edge_type(topology: Topology) -> EdgeName:
    types = list(topology.edge_types)
    if len(types) != 1:
        raise InputError(f"Expected a graph of one edge type, got {types}. Pass random_walk(metapath=...).")
    return types[0]


def _tensors(walks: Walks, topology: Topology) -> tuple[Tensor, ...]:
    found = (walks.node,) if walks.edge_id is None else (walks.node, walks.edge_id)
    return tuple(x.to(topology.index_dtype) for x in found)
