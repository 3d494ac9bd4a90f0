"""The data of a graph as the columns of a loader, each where a GPU reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from manyhop.features import RowRequest
from manyhop_dgl.samplers.features import Data, Prefetched
from manyhop_embedding import Embedding


class PlacedFrames:
    """Data of a graph, each where a GPU reads it.

    Args:
        data: as the graph has them.
        sources: ``[num_entries]``: the source of each of them for the GPU.
    """

    def __init__(self, data: Data, sources: list[object]) -> None:
        self.data, self.sources = data, sources
        self._there = {id(value): source for value, source in zip(data.values, sources, strict=True)}

    def redirect(self, requests: Sequence[RowRequest]) -> None:
        """Return requests with the sources for the GPU; unchanged for data that were added later."""
        there = self._there
        for request in requests:
            request.source = there.get(id(request.source), request.source)

    def shared_objects(self) -> frozenset[int]:
        """Return nothing: batches share no object with a graph."""
        return frozenset()


class FrameColumns:
    """The ``Columns`` of a loader."""

    complete = True

    def __init__(self, prefetched: Prefetched, gpu_cache: Mapping[str, Mapping[str, int]] | None) -> None:
        self._prefetched, self._gpu_cache = prefetched, gpu_cache

    def named(self) -> list[tuple[str, object]]:
        """Return title and value of the data that are wanted and there, without embeddings, which change."""
        return list(_by_title(self._prefetched.find()).items())

    @property
    def kept_rows(self) -> Mapping[str, int] | None:
        """The number of rows of each data that the GPU caches; ``None``: by its memory."""
        if self._gpu_cache is None:
            return None
        kept = {}
        for entry in self._prefetched.find().entries:
            by_name = self._gpu_cache.get("node" if entry.part in ("nodes", "outputs") else "edge", {})
            kept[entry.title] = by_name.get(entry.name, 0)
        return {title: rows for title, rows in kept.items() if rows > 0}

    def place(self, source: Callable[[str, object], object], device: torch.device) -> PlacedFrames:
        """Return the data that the graph has now."""
        data = self._prefetched.data()
        there = {title: source(title, value) for title, value in _by_title(data).items()}
        values = zip(data.entries, data.values, strict=True)
        return PlacedFrames(data, [there.get(entry.title, value) for entry, value in values])

    def fits(self, placed: PlacedFrames) -> bool:
        """Return whether no data were replaced, added or removed since. Called for each batch."""
        return self._prefetched.data() is placed.data


def _by_title(data: Data) -> dict[str, object]:
    """Return title and value, without embeddings."""
    both = zip(data.entries, data.values, strict=True)
    return {entry.title: value for entry, value in both if not isinstance(value, Embedding)}
