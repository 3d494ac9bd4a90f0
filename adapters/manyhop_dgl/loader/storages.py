"""The data that samplers request by name (DGL's ``LazyFeature``), gathered for a whole batch at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import dgl
import torch
from dgl.frame import Column, LazyFeature
from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.features import DistributedRows, RowRequest, ShardedRows
from manyhop.system.arrays import version_of
from manyhop_dgl.graph.graph import Graph
from manyhop_dgl.graph.topology import of_type
from manyhop_dgl.nested import all_in_nested, apply_nested
from manyhop_embedding import Embedding, RowsAhead

Gather: TypeAlias = Callable[[list[RowRequest]], list[Any]]
Assign: TypeAlias = Callable[[Any], None]

_lock = threading.Lock()


class MissingDataError(FeatureError, KeyError):
    """The graph has no such data. Also a ``KeyError``, as in DGL."""

    __str__ = Exception.__str__  # KeyError would quote the message


@dataclass(slots=True)
class Wanted:
    """Data of a batch, to be gathered."""

    lookup: Callable[[], object]
    """Returns the current sources of the rows."""

    ids: Tensor
    title: str
    assign: Assign

    source: Any = None
    """The sources that were read."""

    version: int = 0
    """The version of that: writing to a tensor in place counts it up."""

    def look_up(self) -> None:
        """Record the current sources of the rows."""
        self.source = self.lookup()
        self.version = version_of(self.source)

    def is_current(self) -> bool:
        """Return whether the source has not changed. Rows of other nodes belong to the exchange of the batch."""
        if isinstance(self.source, ShardedRows | DistributedRows):
            return True
        source = self.lookup()
        return source is self.source and version_of(source) == self.version


@dataclass(slots=True)
class Filled:
    """A batch and its sources."""

    batch: Any

    source: Any
    """The state that its prefetcher compares with the current one."""

    is_complete: bool = False

    is_watched: bool = False
    """The engine rebuilds it if the sources of its rows have changed."""

    ahead: list[tuple[Assign, RowsAhead]] = field(default_factory=list)
    """Rows of embeddings, and the function that accepts them unchanged when the batch is returned."""

    def begin(self, embedding: Embedding, ids: Tensor, assign: Assign) -> tuple[RowRequest, Assign] | None:
        """Record rows of an embedding; return the rows to gather in advance and their receiver, or ``None``."""
        ahead, request = embedding.begin(ids, ids.device)
        self.ahead.append((assign, ahead))
        return None if request is None else (request, partial(setattr, ahead, "rows"))

    def finish(self) -> None:
        """Add rows of embeddings to the batch."""
        for assign, ahead in self.ahead:
            assign(ahead.finish())


def moved(batch: object, device: torch.device) -> object:
    """Return the batch with its graphs and tensors on a device."""

    def move(part: object) -> object:
        return part.to(device, non_blocking=True) if isinstance(part, dgl.DGLGraph | Tensor) else part

    return apply_nested(batch, move)


class Prefetcher:
    """Replaces the lazy features in graphs of batches by the data that a graph has at that moment.

    Args:
        graph: where the data are.
    """

    def __init__(self, graph: Graph | dgl.DGLGraph) -> None:
        self._graph = graph

    def _node_storage(self, name: str, kind: str) -> object:
        graph = self._graph
        return graph.nodes[kind].data[name] if isinstance(graph, Graph) else graph.get_node_storage(name, kind)

    def _edge_storage(self, name: str, kind: str) -> object:
        graph = self._graph
        return graph.edges[kind].data[name] if isinstance(graph, Graph) else graph.get_edge_storage(name, kind)

    def fill(self, batches: Sequence[object], gather: Gather) -> tuple[list[Filled], int]:
        """Add data to batches in place, by one gather; also return their bytes.

        If the graph lacks data, batches remain unchanged: the data may exist when the batches are returned.
        """
        filled = [Filled(batch, self._wanted(batch)) for batch in batches]
        with contextlib.suppress(MissingDataError):
            return filled, self._read(filled, gather)
        return filled, 0

    def renew(self, filled: Filled, gather: Gather) -> int:
        """Gather again if a source of rows was replaced or written to."""
        if filled.is_complete and all([one.is_current() for one in filled.source]):
            return 0
        return self._read([filled], gather)

    def _read(self, batches: Sequence[Filled], gather: Gather) -> int:
        wanted = [(filled, one) for filled in batches for one in filled.source]
        for _, one in wanted:
            one.look_up()
        for filled in batches:
            filled.ahead.clear()
        here: list[tuple[RowRequest, Assign]] = []
        for filled, one in wanted:
            if isinstance(one.source, Embedding):
                begun = filled.begin(one.source, one.ids, one.assign)
                here += [] if begun is None else [begun]
            else:
                here.append((RowRequest(one.source, one.ids, 0, one.title), one.assign))
        rows = gather([request for request, _ in here])
        for (_, assign), value in zip(here, rows, strict=True):
            assign(value)
        for filled in batches:
            filled.is_complete = True
        return bytes_of(rows)

    def settle(self, batch: object) -> object:
        """Return the complete batch."""
        return batch

    def _wanted(self, batch: object) -> list[Wanted]:
        """Return the requests of a batch.

        Raises:
            FeatureError: lazy features outside of graphs, or without ids.
        """
        if outside := all_in_nested(LazyFeature, batch):
            raise FeatureError(
                f"Expected lazy features in graphs only, got {outside[0].name!r} outside of them. Gather its rows in "
                "the training loop."
            )
        wanted: list[Wanted] = []
        for g in all_in_nested(dgl.DGLGraph, batch):
            self._collect_graph(g, wanted)
        return wanted

    def _collect_graph(self, g: dgl.DGLGraph, wanted: list[Wanted]) -> None:
        for frames, kinds, id_name, storage in (
            (g._node_frames, g.ntypes, dgl.NID, self._node_storage),
            (g._edge_frames, g.canonical_etypes, dgl.EID, self._edge_storage),
        ):
            for frame, kind in zip(frames, kinds, strict=True):
                for key, column in list(frame._columns.items()):
                    if not isinstance(column, LazyFeature):
                        continue
                    name = column.name or key
                    index = column.id_
                    if index is None and id_name not in frame:
                        raise FeatureError(
                            f"Expected ids for the lazy feature {key!r}{of_type(kind)}, got none: the sampled graph "
                            f"has no data {id_name!r}. Keep them, or pass LazyFeature(name, ids)."
                        )
                    index = frame[id_name] if index is None else index
                    title = f"{name!r}{of_type(kind)}"
                    lookup = partial(_source, storage, name, kind, title)
                    wanted.append(Wanted(lookup, index, title, partial(frame.__setitem__, key)))


def _source(storage: Callable[[str, Any], object], name: str, kind: object, title: str) -> object:
    """Return the current source of rows of some data."""
    try:
        found = storage(name, kind)
    except KeyError:
        raise MissingDataError(
            f"Expected the graph to have data {title}, which the sampler prefetches, but it has none. Set it before "
            "iterating, or leave it out of the sampler's prefetch_* arguments."
        ) from None
    if not isinstance(found, Column):
        return found
    with _lock:  # data of a subgraph are looked up when they are first read
        return found.data


def bytes_of(rows: Sequence[object]) -> int:
    """Return the bytes of values that have bytes."""
    return sum([0 if getattr(value, "is_sparse", False) else getattr(value, "nbytes", 0) for value in rows])
