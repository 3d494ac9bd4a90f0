"""The data that batches of a loader take rows from: what its sampler prefetches, as the graph has it now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import is_

import torch

from manyhop.embedding import Embedding
from manyhop.features import RowRequest
from manyhop_dgl.loader.prefetched import Prefetched
from manyhop_dgl.loader.view import LoaderView


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
        self._prefetched, self._gpu_cache = Prefetched(loader.graph, loader.graph_sampler), loader.gpu_cache

    def named(self) -> list[tuple[str, object]]:
        """Return title and value of the data that are wanted and there, without embeddings, which change."""
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
        current, given = self._current(), placed.given
        return current.keys() == given.keys() and all(map(is_, current.values(), given.values()))

    def _current(self) -> dict[str, object]:
        value = self._prefetched.value
        found = {entry.title: value(entry) for entry in self._prefetched.entries()}
        return {title: rows for title, rows in found.items() if not isinstance(rows, Embedding)}
