"""Rows of a graph's data for batches, gathered by one call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import is_
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from torch import Tensor

from manyhop.errors import FeatureError, InputError
from manyhop.features import DistributedRows, RowRequest, ShardedRows, gather
from manyhop.graph import EdgeType, NodeType
from manyhop_dgl.graph.data import GraphData
from manyhop_dgl.graph.frames import frames
from manyhop_dgl.graph.topology import type_of
from manyhop_dgl.samplers.tensors import BlockTensors, EdgeTensors, Sample
from manyhop_dgl.typing import GraphLike, Names
from manyhop_embedding import Embedding, RowsAhead

KindT = TypeVar("KindT", NodeType, EdgeType)
Gather: TypeAlias = Callable[[list[RowRequest]], list[Any]]
Assign: TypeAlias = Callable[[Any], None]

_lock = threading.Lock()

Part: TypeAlias = Literal["nodes", "outputs", "edges", "seeds"]
"""Rows of the input nodes, of the output nodes, of the edges of each block, of the seed edges."""

_PARTS: tuple[Part, ...] = ("nodes", "outputs", "edges", "seeds")
_OF_NODES = _PARTS[:2]
Requested: TypeAlias = tuple[Names, Names, Names, Names]
"""Names of data of each part."""


class MissingDataError(FeatureError, KeyError):
    """The graph has no such data. Also a ``KeyError``, as in DGL."""

    __str__ = Exception.__str__  # KeyError would quote the message


class Entry(NamedTuple):
    """Data of one name and one type."""

    part: Part
    name: str
    kind: Any
    """The node type or canonical edge type."""
    at: int
    """The number of the type in the graph."""
    title: str
    bound: int | None = None
    """Number of rows, if batches have no other ids."""
    is_alone: bool = False
    """Whether the graph has no other such type."""


class Data(NamedTuple):
    """The data that are wanted, as a graph had them at a time."""

    entries: list[Entry]
    """Those that exist."""

    values: list[Any]
    """``[num_entries]``: of each its rows, ``[bound, ...]``."""

    is_complete: bool
    """Whether all requested data exist."""


def find_data(graph: GraphLike, requested: Requested) -> Data:
    """Return the requested data that exist.

    Raises:
        FeatureError: unknown names, by type.
        InputError: types that the graph does not have.
    """
    data = frames(graph)
    found: list[tuple[Entry, Any]] = []
    for part, names in zip(_PARTS, requested, strict=True):
        what = "node" if part in _OF_NODES else "edge"
        kinds: Mapping[Any, Mapping[str, object]] = data.nodes if what == "node" else data.edges
        if not isinstance(names, Mapping):
            names = [name for name in names or () if any(name in of_kind for of_kind in kinds.values())]
        for name, kind in wanted(names, kinds, what):
            bound = graph.num_nodes(kind) if what == "node" else graph.num_edges(kind)
            title = f"'{name}' of {what} type {kind!r}"
            entry = Entry(part, name, kind, list(kinds).index(kind), title, bound, len(kinds) == 1)
            if (value := value_of(graph, entry)) is not None:
                found.append((entry, value))
    there = {(entry.part, entry.name) for entry, _ in found}
    every = {(part, name) for part, some in zip(_PARTS, requested, strict=True) for name in names_of(some)}
    return Data([entry for entry, _ in found], [value for _, value in found], there == every)


def same_data(data: Data, before: Data) -> bool:
    """Return whether rows have the same sources; rows of other nodes always do."""
    if data is before:
        return True
    return data.entries == before.entries and all(
        a is b or isinstance(b, ShardedRows | DistributedRows) for a, b in zip(data.values, before.values, strict=True)
    )


def check_complete(graph: GraphLike, requested: Requested, data: Data) -> None:
    """Raise FeatureError if requested data do not exist."""
    if data.is_complete:
        return
    found = frames(graph)
    for part, names in zip(_PARTS, requested, strict=True):
        kinds: Any = found.nodes if part in _OF_NODES else found.edges
        wanted(names, kinds, "node" if part in _OF_NODES else "edge")
    raise MissingDataError(f"Expected data {requested}, got {[entry.title for entry in data.entries]}.")


def wanted(names: Names, data: Mapping[KindT, Mapping[str, object]], what: str) -> list[tuple[str, KindT]]:
    """Name and type of all data that is requested."""
    if not names:
        return []
    if isinstance(names, Mapping):
        by_type = {type_of(t, data, what, f"{what}_features"): list(of_type) for t, of_type in names.items()}
        missing = [(name, t) for t, of_type in by_type.items() for name in of_type if name not in data[t]]
        if missing:
            name, t = missing[0]
            raise FeatureError(f"Expected '{name}' among the data of {what} type {t!r}, which has: {list(data[t])}.")
        return [(name, t) for t, of_type in by_type.items() for name in of_type]
    for name in names:
        if not any(name in of_type for of_type in data.values()):
            known = sorted({known for of_type in data.values() for known in of_type})
            raise FeatureError(f"Expected '{name}' among the {what} data of the graph, which has: {known}.")
    return [(name, t) for name in names for t, of_type in data.items() if name in of_type]


def names_of(names: Names) -> Iterable[str]:
    """Return names of all types."""
    return [name for some in names.values() for name in some] if isinstance(names, Mapping) else names or ()


def value_of(graph: Any, entry: Entry) -> Any:
    """Return the current values of an entry; ``None`` if there are none."""
    of_nodes = entry.part in _OF_NODES
    if isinstance(graph, GraphData):
        return (graph.node_frames if of_nodes else graph.edge_frames)[entry.kind].data.get(entry.name)
    return values_of((graph._node_frames if of_nodes else graph._edge_frames)[entry.at], entry.name)


def values_of(frame: Any, name: str) -> Any:
    """Return the values of a name in a frame of DGL, gathered and moved first if necessary; ``None`` without values."""
    column = frame._columns.get(name)
    state: dict[str, Any] | None = getattr(column, "__dict__", None)
    if state is None:  # no such name, or a lazy feature
        return None
    if state["index"] is None and state["device"] is None and state["deferred_dtype"] is None:
        return state["storage"]
    with _lock:  # not two threads at once
        return column.data


class _State(NamedTuple):
    """A key and the data found by it, in one object for multiple threads."""

    requested: object = None
    there: Any = None
    data: Data = Data([], [], True)


class Prefetched:
    """The data that a sampler prefetches from a graph. Both may change between batches.

    Args:
        graph: whose data they are.
        sampler: of nodes, or of edges.
        of_nodes: the sampler itself, or the sampler of nodes beneath.
    """

    def __init__(self, graph: GraphLike, sampler: Any, of_nodes: Any) -> None:
        self._graph, self._sampler, self._nodes = graph, sampler, of_nodes
        self._of_dgl = not isinstance(graph, GraphData)
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
        return find_data(self._graph, self._requested())

    def all_data(self) -> Data:
        """Return the requested data; raise FeatureError if some do not exist."""
        data = self.data()
        if not data.is_complete:
            check_complete(self._graph, self._requested(), data)
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
        values = map(partial(value_of, self._graph), data.entries)
        return there == state.there and all(map(is_, values, data.values))

    def _requested(self) -> Requested:
        nodes, sampler = self._nodes, self._sampler
        of_seeds = [] if nodes is sampler else sampler.prefetch_labels
        return nodes.prefetch_node_feats, nodes.prefetch_labels, nodes.prefetch_edge_feats, of_seeds


def _copied(names: Any) -> Any:
    """Return a copy, equal until the names change; they may be by type."""
    if isinstance(names, Mapping):
        return {kind: _copied(some) for kind, some in names.items()}
    if names is None or isinstance(names, tuple):
        return names
    return [*names] if isinstance(names, list) else tuple(names)


@dataclass(slots=True)
class Filled:
    """A batch, its sources, and the rows that it waits for."""

    batch: Any

    source: Any = None
    """The state that its prefetcher compares with the current one."""

    is_complete: bool = False

    is_watched: bool = False
    """The engine rebuilds it if the sources of its rows have changed."""

    requests: list[RowRequest] = field(default_factory=list)
    assigns: list[Assign] = field(default_factory=list)
    """Functions that add the rows of the requests to the batch."""

    ahead: list[tuple[Assign, RowsAhead]] = field(default_factory=list)
    """Rows of embeddings, and the function that accepts them unchanged when the batch is returned."""

    def clear(self) -> None:
        """Forget the rows."""
        self.requests, self.assigns, self.ahead = [], [], []

    def request(self, entry: Entry, source: Any, ids: Tensor, assign: Assign) -> None:
        """Request rows of an entry. Those of an embedding are added in the end."""
        request: RowRequest | None
        if isinstance(source, Embedding):
            ahead, request = source.begin(ids, ids.device)
            self.ahead.append((assign, ahead))
            if request is None:
                return
            assign = partial(setattr, ahead, "rows")
        else:
            request = RowRequest(source, ids, 0, entry.title, entry.bound)
        self.requests.append(request)
        self.assigns.append(assign)

    def finish(self) -> None:
        """Add rows of embeddings to the batch."""
        for assign, ahead in self.ahead:
            assign(ahead.finish())


def add_rows(batches: Sequence[Filled], gather: Gather) -> int:
    """Gather the requested rows of batches by one call; return their bytes."""
    values = gather([request for filled in batches for request in filled.requests])
    for assign, value in zip([assign for filled in batches for assign in filled.assigns], values, strict=True):
        assign(value)
    for filled in batches:
        filled.requests, filled.assigns = [], []
    return sum([0 if getattr(value, "is_sparse", False) else getattr(value, "nbytes", 0) for value in values])


def request_rows(filled: Filled, data: Data) -> None:
    """Request rows of data for a batch of tensors."""
    batch: BlockTensors | EdgeTensors = filled.batch
    tensors = batch.sample if isinstance(batch, EdgeTensors) else batch
    filled.clear()
    for entry, source in zip(data.entries, data.values, strict=True):
        if tensors.padding is not None and isinstance(source, Embedding):
            raise InputError(
                f"Expected no embedding to be prefetched with pad='auto', got {entry.title}: padding nodes have no "
                "rows. Remove it from the sampler's prefetch_node_feats, and call it with input_nodes."
            )
        key = entry.name if entry.is_alone else entry.kind
        for ids, rows in _places(batch, tensors, entry):
            into = rows if entry.is_alone else rows.setdefault(entry.name, {})
            filled.request(entry, source, ids, partial(into.__setitem__, key))


def _places(
    batch: BlockTensors | EdgeTensors, tensors: BlockTensors, entry: Entry
) -> Iterable[tuple[Tensor, dict[Any, Any]]]:
    """Return the ids of an entry's rows in a batch, and the dictionary for these rows; for edges, of each block."""
    part, kind = entry.part, entry.kind
    if part == "nodes":
        return ((tensors.node[kind], tensors.node_features),)
    if part == "outputs":
        return ((tensors.node[kind][: tensors.num_seeds[kind]], tensors.output_features),)
    if part == "seeds":
        assert isinstance(batch, EdgeTensors)
        return ((batch.ids[kind], batch.edge_features),)
    if not tensors.edge_features:
        tensors.edge_features.extend({} for _ in tensors.blocks)
    ids = [[*block.ids.values()][entry.at] for block in tensors.blocks]
    return zip(ids, tensors.edge_features, strict=True)


def tensors_of(filled: Filled) -> list[Tensor]:
    """Return all tensors of a batch of tensors."""
    batch: Sample = filled.batch
    tensors = batch.sample if isinstance(batch, EdgeTensors) else batch
    found = [*tensors.node.values(), *tensors.hops.tensors(), *_rows_of(batch)]
    if tensors.masks is not None:
        found += tensors.masks.values()
    if tensors.padding is not None and tensors.padding.jobs is not None:
        found.append(tensors.padding.jobs.table)  # which is read again where rows are gathered again
    if isinstance(batch, EdgeTensors):
        for masks in (batch.masks or {}, batch.negative_masks or {}):
            found += masks.values()
        found += batch.ids.values()
        for ends in (batch.ends, batch.negative_ends or {}):
            found += [ids for pair in ends.values() for ids in pair]
    found += [one for _, ahead in filled.ahead for one in ahead.tensors()]
    return found


def _rows_of(batch: Sample) -> list[Tensor]:
    """Return all rows that have been gathered for a batch."""
    tensors = batch.sample if isinstance(batch, EdgeTensors) else batch
    parts: list[Mapping[str, Any]] = [tensors.node_features, tensors.output_features, *tensors.edge_features]
    if isinstance(batch, EdgeTensors):
        parts.append(batch.edge_features)
    found: list[Tensor] = []
    for rows in parts:
        for value in rows.values():
            if isinstance(value, Tensor):
                found.append(value)
            else:
                found += value.values()
    return found


def without_rows(batch: Sample) -> Sample:
    """Return a copy that waits for its rows."""
    tensors = batch.sample if isinstance(batch, EdgeTensors) else batch
    made = replace(tensors, node_features={}, output_features={}, edge_features=[])
    return replace(batch, sample=made, edge_features={}) if isinstance(batch, EdgeTensors) else made


def with_rows(tensors: BlockTensors, graph: GraphLike, node_features: Names, edge_features: Names) -> BlockTensors:
    """Return blocks with rows of the graph's current data, gathered by one call.

    Raises:
        FeatureError: data that the graph does not have.
        InputError: types that it does not have.
    """
    if not node_features and not edge_features:
        return tensors
    requested = node_features, None, edge_features, None
    data = find_data(graph, requested)
    check_complete(graph, requested, data)
    filled = Filled(tensors)
    request_rows(filled, data)
    add_rows([filled], gather)
    filled.finish()
    return tensors
