"""Batches of DGL's objects: the data that samplers request by name (DGL's ``LazyFeature``), and their contents."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import dgl
import torch
from dgl.frame import LazyFeature
from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.features import DistributedRows, ShardedRows
from manyhop.system.arrays import version_of
from manyhop_dgl.graph.graph import Graph
from manyhop_dgl.graph.topology import of_type, type_of
from manyhop_dgl.samplers.features import Assign, Entry, Filled, MissingDataError, Part, value_of
from manyhop_dgl.samplers.tensors import all_in_nested, apply_nested


@dataclass(slots=True)
class Wanted:
    """Data of a batch, to be gathered."""

    entry: Entry
    ids: Tensor
    assign: Assign

    source: Any = None
    """The sources that were read."""

    version: int = 0
    """The version of that: writing to a tensor in place counts it up."""


def moved(batch: object, device: torch.device) -> object:
    """Return the batch with its graphs and tensors on a device."""

    def move(part: object) -> object:
        return part.to(device, non_blocking=True) if isinstance(part, dgl.DGLGraph | Tensor) else part

    return apply_nested(batch, move)


def contents_of(batch: object, indices: object) -> dict[str, int]:
    """Return seeds, nodes and edges of the result of a sampler for some indices."""
    blocks = batch[-1] if isinstance(batch, tuple) and batch and isinstance(batch[-1], list) else batch
    graphs = all_in_nested(dgl.DGLGraph, blocks)
    given = batch[0] if isinstance(batch, tuple) and batch and not all_in_nested(dgl.DGLGraph, batch[0]) else None
    return {
        "seeds": _total(indices),
        "nodes": sum(g.num_src_nodes() for g in graphs[:1]) if given is None else _total(given),
        "edges": sum(g.num_edges() for g in graphs),
    }


def _total(values: object) -> int:
    """Return entries of a tensor, or of all tensors in a dictionary; 0 for other objects."""
    if isinstance(values, Mapping):
        return sum(map(_total, values.values()))
    return values.shape[0] if isinstance(values, Tensor) else 0


class Prefetcher:
    """Replaces the lazy features in graphs of batches by the data that a graph has at that moment.

    Args:
        graph: where the data are.
    """

    def __init__(self, graph: Graph | dgl.DGLGraph) -> None:
        self._graph = graph
        self._types: dict[Part, list[Any]] = {"nodes": list(graph.ntypes), "edges": list(graph.canonical_etypes)}

    def begin(self, batches: Sequence[object]) -> list[Filled]:
        """Request rows of data for batches.

        If the graph lacks data, batches remain unchanged: the data may exist when the batches are returned.
        """
        filled = [Filled(batch, self._wanted(batch)) for batch in batches]
        with contextlib.suppress(MissingDataError):
            for one in filled:
                self._request(one)
        return filled

    def renew(self, filled: Filled) -> bool:
        """Request rows again if a source was replaced or written to; return whether. Rows of other nodes are kept."""
        if filled.is_complete and all(map(self._is_current, filled.source)):
            return False
        self._request(filled)
        return True

    def _is_current(self, one: Wanted) -> bool:
        if isinstance(one.source, ShardedRows | DistributedRows):
            return True
        source = self._source(one.entry)
        return source is one.source and version_of(source) == one.version

    def _request(self, filled: Filled) -> None:
        filled.clear()
        for one in filled.source:
            one.source = self._source(one.entry)
            one.version = version_of(one.source)
        for one in filled.source:
            filled.request(one.entry, one.source, one.ids, one.assign)
        filled.is_complete = True

    def _source(self, entry: Entry) -> Any:
        """Return the current source of rows of some data."""
        found = value_of(self._graph, entry)
        if found is None:
            raise MissingDataError(
                f"Expected the graph to have data {entry.title}, which the sampler prefetches, but it has none. Set it "
                "before iterating, or leave it out of the sampler's prefetch_* arguments."
            )
        return found

    def complete(self, batches: Sequence[Filled]) -> None:
        """Do nothing: no batch is padded."""

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
        return [one for g in all_in_nested(dgl.DGLGraph, batch) for one in self._of_graph(g)]

    def _of_graph(self, g: dgl.DGLGraph) -> list[Wanted]:
        wanted: list[Wanted] = []
        sides: list[tuple[Part, str, Any, Any, str]] = [
            ("nodes", "node", g._node_frames, g.ntypes, dgl.NID),
            ("edges", "edge", g._edge_frames, g.canonical_etypes, dgl.EID),
        ]
        for part, what, frames, kinds, id_name in sides:
            known = self._types[part]
            for frame, kind in zip(frames, kinds, strict=True):
                for key, column in list(frame._columns.items()):
                    if not isinstance(column, LazyFeature):
                        continue
                    name, index = column.name or key, column.id_
                    if index is None and id_name not in frame:
                        raise FeatureError(
                            f"Expected ids for the lazy feature {key!r}{of_type(kind)}, got none: the sampled graph "
                            f"has no data {id_name!r}. Keep them, or pass LazyFeature(name, ids)."
                        )
                    at = known.index(type_of(kind, known, what, "the graph"))
                    entry = Entry(part, name, kind, at, f"{name!r}{of_type(kind)}")
                    index = frame[id_name] if index is None else index
                    wanted.append(Wanted(entry, index, partial(frame.__setitem__, key)))
        return wanted
