"""The data that batches of a loader take rows from: what its sampler prefetches, as the graph has it now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from manyhop.features import RowRequest
from manyhop_dgl.loader.prefetched import Data
from manyhop_dgl.loader.view import LoaderView
from manyhop_embedding import Embedding


class PlacedFrames:
    """Data of a graph, each where a GPU reads it.

    Args:
        data: as the graph has them.
        sources: ``[num_entries]``: what the GPU reads each of them from.
    """

    def __init__(self, data: Data, sources: list[object]) -> None:
        self.data, self.sources = data, sources
        self._there = {id(value): source for value, source in zip(data.values, sources, strict=True)}

    def redirect(self, requests: Sequence[RowRequest]) -> None:
        """Let requests read where the GPU does; those of data that came later stay as they are."""
        there = self._there
        for request in requests:
            request.source = there.get(id(request.source), request.source)

    def shared_objects(self) -> frozenset[int]:
        """Return nothing: batches share no object with a graph."""
        return frozenset()


class FrameColumns:
    """The ``Columns`` of a loader."""

    complete = True

    def __init__(self, loader: LoaderView) -> None:
        self._prefetched, self._gpu_cache = loader.prefetched, loader.gpu_cache

    def named(self) -> list[tuple[str, object]]:
        """Return title and value of the data that are wanted and there, without embeddings, which change."""
        return list(_by_title(self._prefetched.find()).items())

    @property
    def kept_rows(self) -> Mapping[str, int] | None:
        """How many rows of which data the GPU keeps; ``None``: as its memory allows."""
        if self._gpu_cache is None:
            return None
        counts = {f"'{name}' of {what} type": n for what, by in self._gpu_cache.items() for name, n in by.items()}
        titles = _by_title(self._prefetched.find())
        kept = {title: counts.get(title.partition(" type ")[0] + " type", 0) for title in titles}
        return {title: rows for title, rows in kept.items() if rows > 0}

    def place(self, source: Callable[[str, object], object], device: torch.device) -> PlacedFrames:
        """Return the data that the graph has now."""
        data = self._prefetched.data()
        there = {title: source(title, value) for title, value in _by_title(data).items()}
        values = zip(data.entries, data.values, strict=True)
        return PlacedFrames(data, [there.get(entry.title, value) for entry, value in values])

    def fits(self, placed: PlacedFrames) -> bool:
        """Whether no data were replaced, added or removed since. Asked for each batch."""
        return self._prefetched.data() is placed.data


def _by_title(data: Data) -> dict[str, object]:
    """Title and value, without embeddings."""
    both = zip(data.entries, data.values, strict=True)
    return {entry.title: value for entry, value in both if not isinstance(value, Embedding)}
