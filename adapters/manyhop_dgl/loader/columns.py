"""The data that batches of a loader take rows from: what its sampler prefetches, as the graph has it now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from manyhop.features import RowRequest
from manyhop_dgl.graph.frames import frames
from manyhop_dgl.loader.tensors import sampler_of_nodes
from manyhop_dgl.loader.view import LoaderView
from manyhop_dgl.samplers.features import wanted
from manyhop_dgl.typing import Names


class PlacedFrames:
    """Data of a graph, each where a GPU reads it."""

    def __init__(self, given: dict[str, object], sources: list[object]) -> None:
        self.given, self.sources = given, sources
        self._there = dict(zip(given, sources, strict=True))

    def request(self, request: RowRequest) -> RowRequest:
        """Return the request to where the GPU reads the rows; as it is for data that came later."""
        if self.given.get(request.name) is not request.source:
            return request
        return RowRequest(self._there[request.name], request.index, request.dim, request.name, request.bound)

    def shared_objects(self) -> frozenset[int]:
        """Return nothing: batches share no object with a graph."""
        return frozenset()


class FrameColumns:
    """The ``Columns`` of a loader."""

    complete = True

    def __init__(self, loader: LoaderView) -> None:
        self._graph, self._sampler, self._gpu_cache = loader.graph, loader.graph_sampler, loader.gpu_cache

    def named(self) -> list[tuple[str, object]]:
        """Return title and value of the data that are wanted and there."""
        return list(self._current().items())

    @property
    def kept_rows(self) -> Mapping[str, int] | None:
        """How many rows of which data the GPU keeps; ``None``: as its memory allows."""
        if self._gpu_cache is None:
            return None
        counts = {f"'{name}' of {what} type": n for what, by in self._gpu_cache.items() for name, n in by.items()}
        kept = {title: counts.get(title.partition(" type ")[0] + " type", 0) for title in self._current()}
        return {title: rows for title, rows in kept.items() if rows > 0}

    def place(self, source: Callable[[str, object], object], device: torch.device) -> PlacedFrames:
        """Return the data that the graph has now."""
        given = self._current()
        return PlacedFrames(given, [source(title, value) for title, value in given.items()])

    def fits(self, placed: PlacedFrames) -> bool:
        """Whether no data were replaced, added or removed since. Asked for each batch."""
        current = self._current()
        return len(current) == len(placed.given) and all(
            value is placed.given.get(title) for title, value in current.items()
        )

    def _current(self) -> dict[str, object]:
        nodes = sampler_of_nodes(self._sampler)
        data = frames(self._graph)
        found: dict[str, object] = {}
        for names, what, kinds in (
            (nodes.prefetch_node_feats, "node", data.nodes),
            (nodes.prefetch_labels, "node", data.nodes),
            (nodes.prefetch_edge_feats, "edge", data.edges),
            ([] if nodes is self._sampler else self._sampler.prefetch_labels, "edge", data.edges),
        ):
            for name, kind in _there(names, kinds, what):
                found[f"'{name}' of {what} type {kind!r}"] = kinds[kind][name]
        return found


def _there(names: Names, kinds: Mapping[Any, Mapping[str, object]], what: str) -> Iterator[tuple[str, Any]]:
    """Yield name and type of the data that are wanted, and there."""
    known = names if isinstance(names, Mapping) else [n for n in names or () if any(n in of for of in kinds.values())]
    for name, kind in wanted(known, kinds, what):
        if name in kinds[kind]:
            yield name, kind
