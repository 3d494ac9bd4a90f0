"""The topology that samplers work on, of a DGLGraph or a manyhop_dgl.Graph."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from manyhop.errors import GraphError, InputError
from manyhop.graph import (
    HOMOGENEOUS_EDGE,
    HOMOGENEOUS_NODE,
    EdgeInput,
    EdgeType,
    Graph,
    build_graph,
    endpoints,
    out_degrees,
    reverse_edges,
    with_mask,
    with_weights,
)
from manyhop.memory.mapped_files import identity
from manyhop.memory.sharing import once_per_node
from manyhop.memory.stores import WHOLE_ONCE, checksum
from manyhop.sampling.walks import Walker
from manyhop.system.arrays import describe, has_memory, known, version_of
from manyhop.system.threads import in_forked_children
from manyhop_dgl.typing import GraphLike

T = TypeVar("T")
EdgeDir = Literal["in", "out"]
_Key: TypeAlias = tuple[EdgeDir, str | None, str | None]
"""``edge_dir``, ``prob`` and ``mask``."""
_Made: TypeAlias = weakref.WeakKeyDictionary[object, dict[object, Any]]


def of_type(kind: object) -> str:
    """Return `` of 'paper'``, for errors; nothing for the type of a homogeneous graph."""
    return "" if kind in (HOMOGENEOUS_NODE, HOMOGENEOUS_EDGE) else f" of {kind!r}"


def known_types(types: Sequence[Any]) -> str:
    """Return the types of a graph as a sentence, for errors."""
    if list(types) in ([HOMOGENEOUS_NODE], [HOMOGENEOUS_EDGE]):
        return "The graph has no types. Leave the type out."
    return f"The graph has: {list(types)}."


def canonical(name: object, edge_types: Iterable[EdgeType], what: str) -> EdgeType:
    """Return the canonical edge type of a name, which may be a triple or its middle.

    Raises:
        InputError: there is none, or more than one.
    """
    fitting = [t for t in edge_types if name in (t, t[1])]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise InputError(f"Ambiguous edge type {name!r} in {what}: it may be {fitting}. Pass the triple.")
    raise InputError(f"Unknown edge type {name!r} in {what}. {known_types(list(edge_types))}")


def type_of(name: object, types: Iterable[Any], kind: str, what: str) -> Any:
    """Return the node type, or the canonical edge type, of a name.

    Raises:
        InputError: an unknown type, or an ambiguous one.
    """
    known = list(types)
    if kind == "edge":
        return canonical(name, known, what)
    if name not in known:
        raise InputError(f"Unknown node type {name!r} in {what}. {known_types(known)}")
    return name


class Tables:
    """The edges of a ``manyhop_dgl.Graph``."""

    def __init__(self, graph: Graph, idtype: torch.dtype) -> None:
        self.graph, self.idtype = graph, idtype
        self._lock = threading.Lock()
        self._lists: dict[EdgeType, tuple[Tensor, Tensor]] = {}
        self._degrees: dict[EdgeType, Tensor] = {}

    def edge_list(self, edge_type: EdgeType) -> tuple[Tensor, Tensor]:
        """Return source and destination by edge id, both ``[num_edges] int32 or int64``; made once."""
        with self._lock:
            if edge_type not in self._lists:
                self._lists[edge_type] = endpoints(self.graph, edge_type)
            return self._lists[edge_type]

    def degrees_out(self, edge_type: EdgeType) -> Tensor:
        """Return ``[num_src] int64``; made once."""
        with self._lock:
            if edge_type not in self._degrees:
                self._degrees[edge_type] = out_degrees(self.graph, edge_type)
            return self._degrees[edge_type]

    def __reduce__(self) -> tuple[type[Tables], tuple[Graph, torch.dtype]]:
        return Tables, (self.graph, self.idtype)


@dataclass(frozen=True)
class Topology:
    """A graph ready to be sampled, and how to translate between DGL's terms and its own."""

    graph: Graph
    """Node types in the order of ``g.ntypes``, edge types in the order of ``g.canonical_etypes``; edge ids as in DGL.
    With ``edge_dir="out"``, the graph's edges are DGL's reversed."""

    weighted: bool
    """Whether neighbours are picked by weight."""

    edge_types: dict[EdgeType, EdgeType]
    """DGL's canonical edge type -> the graph's edge type: the same, or reversed with ``edge_dir="out"``."""

    index_dtype: torch.dtype
    """``g.idtype``: the dtype of ids in blocks."""

    latest_walks: list[Walker] = field(default_factory=list, compare=False, repr=False)
    """At most one: the sampler of the latest random walks, which may have a table of the edges."""

    _made: _Made = field(default_factory=weakref.WeakKeyDictionary, compare=False, repr=False)

    def once(self, owner: object, key: object, make: Callable[[], T]) -> T:
        """Return ``make()``, called once for each key and kept as long as ``owner``. Multiple threads may call it."""
        made: T | None = self._made.get(owner, {}).get(key)
        if made is None:
            with _lock:
                of_owner = self._made.setdefault(owner, {})
                made = of_owner.get(key)
                if made is None:
                    made = of_owner[key] = make()
        return made


@dataclass(frozen=True)
class _Entry:
    read: tuple[tuple[Tensor, int], ...]
    """Data of the tables, each with its version at that time."""
    checksums: tuple[int, ...]
    """The versions of these data, at that time."""
    topology: Topology


@dataclass(frozen=True)
class _Tables:
    edges: weakref.ref[object]
    entries: dict[_Key, _Entry] = field(default_factory=dict)


_lock = threading.RLock()


def _renew_lock() -> None:
    """Replace the lock in a forked process, which has no thread that could release it."""
    global _lock
    _lock = threading.RLock()


in_forked_children(_renew_lock)


def check_choice_of_edges(edge_dir: object, prob: object, mask: object) -> None:
    """Raise InputError for an unknown direction, or weights and a mask together."""
    if edge_dir not in ("in", "out"):
        raise InputError(f"Expected edge_dir 'in' or 'out', got {edge_dir!r}.")
    if prob is not None and mask is not None:
        raise InputError(
            f"Expected either prob or mask, got prob={prob!r} and mask={mask!r}. Multiply the weights with the mask: "
            "edges of weight 0 are not sampled."
        )


def topology_of(
    g: GraphLike, *, edge_dir: EdgeDir = "in", prob: str | None = None, mask: str | None = None
) -> Topology:
    """Return the topology of a graph, which is built again if its inputs change.

    Noticed are edges that are added or removed, and edge data that is replaced, or written in place by operations of
    torch (not through numpy).

    Args:
        g: a ``DGLGraph`` on the CPU or a ``manyhop_dgl.Graph``.
        edge_dir: ``"in"``: neighbours are sources of a node's in-edges; ``"out"``: destinations of its out-edges.
        prob: name of edge data, ``[num_edges]`` or ``[num_edges, 1]``: non-negative weights, or booleans as ``mask``.
            Edge types that have no such data are sampled uniformly.
        mask: name of boolean edge data of the same shape: edges that may be sampled.

    Raises:
        GraphError: no edge type has such data; its length, dtype or values are wrong.
        InputError: another kind of graph; a block; a graph on a GPU; ``prob`` and ``mask`` together.
    """
    check_choice_of_edges(edge_dir, prob, mask)
    owner, edges = edges_of(g)
    weights, masks = _edge_data(g, prob, mask)
    found = [*weights.values(), *masks.values()]
    read = tuple((tensor, version_of(tensor)) for tensor in found)
    with _lock:
        record = known(owner)
        if record.tables is None or record.tables.edges() is not edges:
            record.tables = _Tables(weakref.ref(edges))
        entries: dict[_Key, _Entry] = record.tables.entries
        entry = entries.get((edge_dir, prob, mask))
        if entry is None or not _same(entry.read, read):
            topology = _topology(g, edge_dir, weights, masks, entries, prob or mask or "")
            sums = tuple(checksum(tensor, whole=WHOLE_ONCE) for tensor in found)
            entry = entries[edge_dir, prob, mask] = _Entry(read, sums, topology)
        return entry.topology


def forget_changed(g: GraphLike) -> None:
    """Drop topologies whose data were written by numpy or another process, so that they are built again.

    Reads all data, up to 256 MiB of each tensor, so it is for creating loaders, not for batches.
    """
    with _lock:
        tables = known(edges_of(g)[0]).tables
        for key, entry in list(tables.entries.items()) if tables is not None else []:
            sums = tuple(checksum(tensor, whole=WHOLE_ONCE) for tensor, _ in entry.read)
            if sums != entry.checksums:
                del tables.entries[key]


def edges_of(g: GraphLike) -> tuple[object, object]:
    """Return the object that lives as long as the topologies of a graph, and the one that is replaced with its edges.

    Raises:
        InputError: an unsupported object; a block, or a graph on a GPU.
    """
    graph: Any = g
    if isinstance(getattr(g, "tables", None), Tables):
        return graph.tables, graph.tables
    if not hasattr(g, "canonical_etypes") or not hasattr(g, "adj_tensors"):
        raise InputError(f"Expected a DGLGraph or a manyhop_dgl.Graph, got {type(g).__name__}.")
    if graph.is_block:
        raise InputError("Expected a graph to sample from, got a block (message flow graph). Pass the graph itself.")
    if g.device.type != "cpu":
        raise InputError(
            f"Expected a graph on the CPU, got one on {g.device}. Pass it in host memory, without g.to(device): to "
            "sample on a GPU, manyhop has its own tables there."
        )
    return g, graph._graph


def compress(g: Any, edge_dir: EdgeDir) -> Graph:
    """Compress the edges of a graph, without weights."""
    if isinstance(getattr(g, "tables", None), Tables):
        graph: Graph = g.tables.graph
        what = f"reversed {graph.node_types, graph.edge_types}"
        return graph if edge_dir == "in" else built_once(what, graph.tables(), lambda: reverse_edges(graph))
    formats = g.formats()
    # DGL's own table: its order within a column is that of DGL's blocks, and with int32 ids it is not copied.
    table = "csc" if edge_dir == "in" else "csr"
    compressed = table in (*formats["created"], *formats["not created"])
    edges = {}
    for edge_type in g.canonical_etypes:
        src, relation, dst = edge_type
        if compressed:
            pointer, ids, edge_id = g.adj_tensors(table, edge_type)
            ends = ids, None
        else:
            pointer = None
            row, col, edge_id = g.edges(form="all", order=None, etype=edge_type)
            ends = (row, col) if edge_dir == "in" else (col, row)
        ids = _unless_counting(edge_id)
        given = EdgeInput(row=ends[0], col=ends[1], colptr=pointer, edge_id=ids, reversed=edge_dir == "out")
        edges[edge_type if edge_dir == "in" else (dst, relation, src)] = given
    return build_graph({node_type: g.num_nodes(node_type) for node_type in g.ntypes}, edges)


def _unless_counting(edge_id: Tensor) -> Tensor | None:
    """Return the ids, or ``None`` for 0, 1, 2, ..., which need no table. DGL's tensor is empty then."""
    n = edge_id.numel()
    if n == 0 or bool((edge_id == torch.arange(n, dtype=edge_id.dtype)).all()):
        return None
    return edge_id


def built_once(what: str, inputs: Iterable[Tensor], build: Callable[[], Graph]) -> Graph:
    """Return ``build()``. If ranks share the memory of all inputs, one rank per node builds it."""
    inputs = list(inputs)
    contents = [identity(tensor) for tensor in inputs]
    if None in contents:
        return build()
    sums = [checksum(tensor, whole=WHOLE_ONCE) for tensor in inputs]
    return once_per_node(f"tables of DGL {what} {contents} {sums}", build, what="the topology")


def _topology(
    g: GraphLike,
    edge_dir: EdgeDir,
    weights: dict[EdgeType, Tensor],
    masks: dict[EdgeType, Tensor],
    entries: dict[_Key, _Entry],
    name: str,
) -> Topology:
    names = {t: t if edge_dir == "in" else (t[2], t[1], t[0]) for t in g.canonical_etypes}
    if not weights and not masks:
        return Topology(compress(g, edge_dir), False, names, g.idtype)
    plain = entries.get((edge_dir, None, None))
    if plain is None:
        plain = entries[edge_dir, None, None] = _Entry((), (), _topology(g, edge_dir, {}, {}, entries, ""))
    whole = plain.topology.graph
    masks = {names[t]: _column(x, t, whole.num_edges(names[t]), name) for t, x in masks.items()}
    weights = {names[t]: _column(x, t, whole.num_edges(names[t]), name) for t, x in weights.items()}
    graph = built_once(
        f"{edge_dir} {tuple(g.ntypes), tuple(g.canonical_etypes)}",
        [*whole.tables(), *masks.values(), *weights.values()],
        lambda: with_weights(with_mask(whole, masks), weights),
    )
    return Topology(graph, bool(weights), names, g.idtype)


def _edge_data(
    g: GraphLike, prob: str | None, mask: str | None
) -> tuple[dict[EdgeType, Tensor], dict[EdgeType, Tensor]]:
    """Weights and masks by canonical edge type, as the frames hold them now."""
    name = prob if prob is not None else mask
    if name is None:
        return {}, {}
    weights, masks = {}, {}
    for edge_type in g.canonical_etypes:
        data = g.edges[edge_type].data
        if name not in data:
            continue
        value = data[name]
        if not isinstance(value, Tensor) or value.device.type != "cpu" or not has_memory(value):
            raise GraphError(
                f"Expected '{name}'{of_type(edge_type)} as a dense tensor on the CPU, got {describe(value)}."
            )
        if value.dtype == torch.bool:
            masks[edge_type] = value
        elif mask is not None:
            raise GraphError(
                f"Expected the mask '{name}'{of_type(edge_type)} as bool, got {describe(value)}. Compare it "
                f"(g.edata[{name!r}] > 0), or pass it as prob if it holds weights."
            )
        else:
            weights[edge_type] = value
    if not weights and not masks:
        raise GraphError(
            f"Expected edge data '{name}' for {'prob' if prob is not None else 'mask'}, got a graph without any "
            f"of this name. Set g.edata[{name!r}], or g.edges[etype].data[{name!r}]."
        )
    return weights, masks


def _column(value: Tensor, edge_type: EdgeType, num_edges: int, name: str) -> Tensor:
    """Flatten ``[num_edges]`` or ``[num_edges, 1]`` to ``[num_edges]``."""
    if value.shape not in ((num_edges,), (num_edges, 1)):
        raise GraphError(
            f"Expected '{name}'{of_type(edge_type)} with one number per edge, [{num_edges}] or [{num_edges}, 1], "
            f"got {describe(value)}."
        )
    return value.detach().reshape(-1)


def _same(a: tuple[tuple[Tensor, int], ...], b: tuple[tuple[Tensor, int], ...]) -> bool:
    return len(a) == len(b) and all(x[0] is y[0] and x[1] == y[1] for x, y in zip(a, b, strict=True))
