"""What a sampler prefetches: which data of which types, and their values as the graph has them now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeAlias

import dgl
from dgl.dataloading import BlockSampler

from manyhop_dgl.edges.prediction import EdgePredictionSampler
from manyhop_dgl.graph.dgl_frames import values_of
from manyhop_dgl.graph.frames import frames
from manyhop_dgl.graph.graph import Graph
from manyhop_dgl.samplers.features import wanted
from manyhop_dgl.typing import Names

Part: TypeAlias = Literal["nodes", "outputs", "edges", "seeds"]
"""Rows of the input nodes, of the output nodes, of the edges of each block, of the seed edges."""

_PARTS: tuple[Part, ...] = ("nodes", "outputs", "edges", "seeds")
_OF_NODES = _PARTS[:2]
_columns_of, _data_of = attrgetter("_columns"), attrgetter("data")


class Entry(NamedTuple):
    """Data of one name and one type."""

    part: Part
    name: str
    kind: Any
    """The node type or canonical edge type."""
    at: int
    """Which of the graph's types that is."""
    title: str
    bound: int
    """Number of rows."""


class Prefetched:
    """The data that a sampler prefetches from a graph. Both may change between batches, so ask for each one.

    Args:
        graph: whose data they are.
        sampler: of nodes, or of edges with a sampler of nodes beneath.
    """

    def __init__(self, graph: Graph | dgl.DGLGraph, sampler: BlockSampler) -> None:
        self._graph, self._sampler, self._nodes = graph, sampler, sampler_of_nodes(sampler)
        self._known: tuple[object, list[Entry], bool] = None, [], True  # in one piece: other threads read it

    def entries(self) -> list[Entry]:
        """Return what is wanted and there.

        Raises:
            FeatureError: names by type that are not there.
            InputError: types that the graph does not have.
        """
        asked, graph = self._asked(), self._graph
        names = [tuple(some) if type(some) is list else _snapshot(some) for some in asked]
        if isinstance(graph, dgl.DGLGraph):
            there = *map(tuple, map(_columns_of, graph._node_frames)), *map(tuple, map(_columns_of, graph._edge_frames))
        else:
            of_nodes, of_edges = graph.node_frames.values(), graph.edge_frames.values()
            there = *map(tuple, map(_data_of, of_nodes)), *map(tuple, map(_data_of, of_edges))
        if self._known[0] != (names, there):
            entries = list(self._find(asked))
            found = {(entry.part, entry.name) for entry in entries}
            wanted = {(part, name) for part, some in zip(_PARTS, asked, strict=True) for name in _names(some)}
            self._known = (names, there), entries, found == wanted
        return self._known[1]

    def all_entries(self) -> list[Entry]:
        """Return what is wanted.

        Raises:
            FeatureError: it is not there.
        """
        entries = self.entries()
        if not self._known[2]:
            self._check()
        return entries

    def value(self, entry: Entry) -> Any:
        """Return the values of an entry; ``None`` if they have been removed."""
        graph, of_nodes = self._graph, entry.part in _OF_NODES
        if isinstance(graph, dgl.DGLGraph):
            return values_of((graph._node_frames if of_nodes else graph._edge_frames)[entry.at], entry.name)
        found: Any = graph.node_frames if of_nodes else graph.edge_frames
        return found[entry.kind].data.get(entry.name)

    def _check(self) -> None:
        data = frames(self._graph)
        for part, names in zip(_PARTS, self._asked(), strict=True):
            kinds: Any = data.nodes if part in _OF_NODES else data.edges
            wanted(names, kinds, "node" if part in _OF_NODES else "edge")

    def _asked(self) -> tuple[Names, Names, Names, Names]:
        """The names of each part."""
        nodes, sampler = self._nodes, self._sampler
        of_seeds = [] if nodes is sampler else sampler.prefetch_labels
        return nodes.prefetch_node_feats, nodes.prefetch_labels, nodes.prefetch_edge_feats, of_seeds

    def _find(self, asked: Sequence[Names]) -> Iterator[Entry]:
        graph, data = self._graph, frames(self._graph)
        for part, names in zip(_PARTS, asked, strict=True):
            what = "node" if part in _OF_NODES else "edge"
            kinds: Mapping[Any, Mapping[str, object]] = data.nodes if what == "node" else data.edges
            if not isinstance(names, Mapping):
                names = [name for name in names or () if any(name in of_kind for of_kind in kinds.values())]
            for name, kind in wanted(names, kinds, what):
                bound = graph.num_nodes(kind) if what == "node" else graph.num_edges(kind)
                yield Entry(part, name, kind, list(kinds).index(kind), f"'{name}' of {what} type {kind!r}", bound)


def _snapshot(names: Names) -> object:
    """A copy of names that may be by type."""
    return [(kind, *some) for kind, some in names.items()] if isinstance(names, Mapping) else tuple(names or ())


def _names(names: Names) -> Iterable[str]:
    """Names that may be by type."""
    return [name for some in names.values() for name in some] if isinstance(names, Mapping) else names or ()


def sampler_of_nodes(sampler: BlockSampler) -> BlockSampler:
    """The sampler itself, or the one beneath a sampler of edges."""
    return sampler.sampler if isinstance(sampler, EdgePredictionSampler) else sampler
