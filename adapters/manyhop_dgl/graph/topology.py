"""The topology that samplers work on, of a DGLGraph or a manyhop_dgl.Graph."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from manyhop.errors import GraphError, InputError
from manyhop.graph import EdgeType, Graph, with_mask, with_weights
from manyhop.memory.known import known
from manyhop.memory.stores import WHOLE_ONCE, checksum
from manyhop.sampling.walks import Walker
from manyhop.system.arrays import describe, has_memory, version_of
from manyhop.system.threads import in_forked_children
from manyhop_dgl.graph.data import GraphData, of_type
from manyhop_dgl.graph.readers import EdgeDir, GraphReader, built_once, read_dgl, read_tables
from manyhop_dgl.typing import GraphLike, TypeNames

_Key: TypeAlias = tuple[EdgeDir, str | None, str | None]
"""``edge_dir``, ``prob`` and ``mask``."""


@dataclass(frozen=True)
class Topology:
    """A graph ready to be sampled, and how to translate between DGL's terms and its own."""

    graph: Graph
    """Node types in the order of ``g.ntypes``, edge types in the order of ``g.canonical_etypes``; edge ids as in DGL.
    With ``edge_dir="out"``, the graph's edges are DGL's reversed."""

    weighted: bool
    """Whether neighbours are picked by weight."""

    edge_dir: EdgeDir

    edge_types: dict[EdgeType, EdgeType]
    """DGL's canonical edge type -> the graph's edge type: the same, or reversed with ``edge_dir="out"``."""

    index_dtype: torch.dtype
    """``g.idtype``: the dtype of ids in blocks."""

    latest_walks: list[Walker] = field(default_factory=list, compare=False, repr=False)
    """At most one: the sampler of the latest random walks, which may have a table of the edges."""


@dataclass(frozen=True)
class _Entry:
    names: TypeNames
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
    reader = reader_of(g)
    weights, masks = _edge_data(reader, prob, mask)
    found = [*weights.values(), *masks.values()]
    read = tuple((tensor, version_of(tensor)) for tensor in found)
    with _lock:
        record = known(reader.owner)
        if record.tables is None or record.tables.edges() is not reader.edges:
            record.tables = _Tables(weakref.ref(reader.edges))
        entries: dict[_Key, _Entry] = record.tables.entries
        entry = entries.get((edge_dir, prob, mask))
        if entry is None or entry.names != reader.names or not _same(entry.read, read):
            topology = _topology(reader, edge_dir, weights, masks, entries, prob or mask or "")
            sums = tuple(checksum(tensor, whole=WHOLE_ONCE) for tensor in found)
            entry = entries[edge_dir, prob, mask] = _Entry(reader.names, read, sums, topology)
        return entry.topology


def forget_changed(g: GraphLike) -> None:
    """Drop topologies whose data were written by numpy or another process, so that they are built again.

    Reads all data, up to 256 MiB of each tensor, so it is for creating loaders, not for batches.
    """
    with _lock:
        tables = known(reader_of(g).owner).tables
        for key, entry in list(tables.entries.items()) if tables is not None else []:
            sums = tuple(checksum(tensor, whole=WHOLE_ONCE) for tensor, _ in entry.read)
            if sums != entry.checksums:
                del tables.entries[key]


def reader_of(g: GraphLike) -> GraphReader:
    """Return how to read a graph.

    Raises:
        InputError: an unsupported object.
    """
    if isinstance(g, GraphData):
        return read_tables(g.tables, g.edge_frames)
    if hasattr(g, "canonical_etypes") and hasattr(g, "adj_tensors"):
        return read_dgl(g)
    raise InputError(f"Expected a DGLGraph or a manyhop_dgl.Graph, got {type(g).__name__}.")


def _topology(
    reader: GraphReader,
    edge_dir: EdgeDir,
    weights: dict[EdgeType, Tensor],
    masks: dict[EdgeType, Tensor],
    entries: dict[_Key, _Entry],
    name: str,
) -> Topology:
    names = {t: t if edge_dir == "in" else (t[2], t[1], t[0]) for t in reader.names[1]}
    if not weights and not masks:
        return Topology(reader.build(edge_dir), False, edge_dir, names, reader.idtype)
    plain = entries.get((edge_dir, None, None))
    if plain is None or plain.names != reader.names:
        topology = _topology(reader, edge_dir, {}, {}, entries, "")
        plain = entries[edge_dir, None, None] = _Entry(reader.names, (), (), topology)
    whole = plain.topology.graph
    masks = {names[t]: _column(x, t, whole.num_edges(names[t]), name) for t, x in masks.items()}
    weights = {names[t]: _column(x, t, whole.num_edges(names[t]), name) for t, x in weights.items()}
    graph = built_once(
        f"{edge_dir} {reader.names}",
        [*whole.tables(), *masks.values(), *weights.values()],
        lambda: with_weights(with_mask(whole, masks), weights),
    )
    return Topology(graph, bool(weights), edge_dir, names, reader.idtype)


def _edge_data(
    reader: GraphReader, prob: str | None, mask: str | None
) -> tuple[dict[EdgeType, Tensor], dict[EdgeType, Tensor]]:
    """Weights and masks by canonical edge type, as the frames hold them now."""
    name = prob if prob is not None else mask
    if name is None:
        return {}, {}
    weights, masks = {}, {}
    for edge_type in reader.names[1]:
        data = reader.edge_data(edge_type)
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
