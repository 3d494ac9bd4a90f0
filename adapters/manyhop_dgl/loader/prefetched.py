"""Data that a sampler prefetches: names by type, and their current values in the graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import is_
from typing import Any, Literal, NamedTuple, TypeAlias

import dgl
from dgl.dataloading import BlockSampler

from manyhop_dgl.graph.frames import frames
from manyhop_dgl.graph.graph import Graph
from manyhop_dgl.loader.storages import MissingDataError
from manyhop_dgl.samplers.blocks import values_of
from manyhop_dgl.samplers.edges import EdgePredictionSampler
from manyhop_dgl.samplers.features import wanted
from manyhop_dgl.typing import Names

Part: TypeAlias = Literal["nodes", "outputs", "edges", "seeds"]
"""Rows of the input nodes, of the output nodes, of the edges of each block, of the seed edges."""

_PARTS: tuple[Part, ...] = ("nodes", "outputs", "edges", "seeds")
_OF_NODES = _PARTS[:2]


class Entry(NamedTuple):
    """Data of one name and one type."""

    part: Part
    name: str
    kind: Any
    """The node type or canonical edge type."""
    at: int
    """The number of the type in the graph."""
    title: str
    bound: int
    """Number of rows."""


class Data(NamedTuple):
    """The data that are wanted, as a graph had them at a time."""

    entries: list[Entry]
    """Those that exist."""

    values: list[Any]
    """``[num_entries]``: of each its rows, ``[bound, ...]``."""

    is_complete: bool
    """Whether all requested data exist."""


class _State(NamedTuple):
    """A key and the data found by it, in one object for multiple threads."""

    requested: object = None
    there: Any = None
    data: Data = Data([], [], True)


class Prefetched:
    """The data that a sampler prefetches from a graph. Both may change between batches.

    Args:
        graph: whose data they are.
        sampler: of nodes, or of edges with a sampler of nodes beneath.
    """

    def __init__(self, graph: Graph | dgl.DGLGraph, sampler: BlockSampler) -> None:
        self._graph, self._sampler, self._nodes = graph, sampler, sampler_of_nodes(sampler)
        self._of_dgl = isinstance(graph, dgl.DGLGraph)
        self._state = _State()

    def data(self) -> Data:
        """Return the requested data that exist: the same object until they change.

        Raises:
            FeatureError: unknown names, by type.
            InputError: types that the graph does not have.
        """
        requested, state = self._requested(), self._state
        if state.requested == requested and self._is_same(state):
            return state.data
        there = self.there()  # before the data found by it
        data, known = self.find(), state.data
        same = (data.entries, data.is_complete) == (known.entries, known.is_complete)
        if same and all(map(is_, data.values, known.values)):
            data = known  # only other data have changed
        self._state = _State(tuple(map(_copied, requested)), there, data)
        return data

    def find(self) -> Data:
        """Return what :meth:`data` does, without keeping it."""
        requested = self._requested()
        found = [(entry, value) for entry in self._find(requested) if (value := self._value(entry)) is not None]
        names = {(entry.part, entry.name) for entry, _ in found}
        wanted = {(part, name) for part, some in zip(_PARTS, requested, strict=True) for name in _names(some)}
        return Data([entry for entry, _ in found], [value for _, value in found], names == wanted)

    def all_data(self) -> Data:
        """Return the requested data.

        Raises:
            FeatureError: missing data.
        """
        data = self.data()
        if not data.is_complete:
            self._check()
            raise MissingDataError(f"Expected data {self._requested()}, got {[entry.title for entry in data.entries]}.")
        return data

    def there(self) -> list[object]:
        """Return objects that change if data are added, removed or replaced, by type; of a ``DGLGraph``, only names."""
        graph: Any = self._graph
        if self._of_dgl:
            return [[*frame._columns] for frame in (*graph._node_frames, *graph._edge_frames)]
        return [frame.data for frame in (*graph.node_frames.values(), *graph.edge_frames.values())]

    def _is_same(self, state: _State) -> bool:
        there, data = self.there(), state.data
        if not self._of_dgl:
            return len(there) == len(state.there) and all(map(is_, there, state.there))
        return there == state.there and all(map(is_, map(self._value, data.entries), data.values))

    def _value(self, entry: Entry) -> Any:
        """Return the current values of an entry, or ``None``."""
        graph: Any = self._graph
        of_nodes = entry.part in _OF_NODES
        if self._of_dgl:
            return values_of((graph._node_frames if of_nodes else graph._edge_frames)[entry.at], entry.name)
        return (graph.node_frames if of_nodes else graph.edge_frames)[entry.kind].data.get(entry.name)

    def _check(self) -> None:
        data = frames(self._graph)
        for part, names in zip(_PARTS, self._requested(), strict=True):
            kinds: Any = data.nodes if part in _OF_NODES else data.edges
            wanted(names, kinds, "node" if part in _OF_NODES else "edge")

    def _requested(self) -> tuple[Names, Names, Names, Names]:
        nodes, sampler = self._nodes, self._sampler
        of_seeds = [] if nodes is sampler else sampler.prefetch_labels
        return nodes.prefetch_node_feats, nodes.prefetch_labels, nodes.prefetch_edge_feats, of_seeds

    def _find(self, requested: Sequence[Names]) -> Iterator[Entry]:
        graph, data = self._graph, frames(self._graph)
        for part, names in zip(_PARTS, requested, strict=True):
            what = "node" if part in _OF_NODES else "edge"
            kinds: Mapping[Any, Mapping[str, object]] = data.nodes if what == "node" else data.edges
            if not isinstance(names, Mapping):
                names = [name for name in names or () if any(name in of_kind for of_kind in kinds.values())]
            for name, kind in wanted(names, kinds, what):
                bound = graph.num_nodes(kind) if what == "node" else graph.num_edges(kind)
                yield Entry(part, name, kind, list(kinds).index(kind), f"'{name}' of {what} type {kind!r}", bound)


def _copied(names: Any) -> Any:
    """Return a copy, equal until the names change; they may be by type."""
    if isinstance(names, Mapping):
        return {kind: _copied(some) for kind, some in names.items()}
    if names is None or isinstance(names, tuple):
        return names
    return [*names] if isinstance(names, list) else tuple(names)


def _names(names: Names) -> Iterable[str]:
    return [name for some in names.values() for name in some] if isinstance(names, Mapping) else names or ()


def sampler_of_nodes(sampler: BlockSampler) -> BlockSampler:
    """Return the sampler itself, or the one beneath a sampler of edges."""
    return sampler.sampler if isinstance(sampler, EdgePredictionSampler) else sampler
