"""A cache of rows of other nodes that are asked for often: chosen and filled once, then only read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from manyhop.features.buffers import BufferPool
from manyhop.features.exchange.host import Exchange
from manyhop.features.exchange.spread import node_memory
from manyhop.features.hot.index import HotIndex
from manyhop.features.requests import RowRequest
from manyhop.features.sources.shards import ShardedRows
from manyhop.memory.sharing import share
from manyhop.ranks import control

_TAG = (-2, 0)  # of the exchange that fills a cache: no epoch has it


@dataclass
class _Group:
    """Tensors that are read by the same ids."""

    sources: list[ShardedRows]
    ids: list[Tensor] = field(default_factory=list)
    """Ids of rows of other nodes, batch by batch."""

    @property
    def width(self) -> int:
        return sum(source.row_bytes for source in self.sources)


class Visits:
    """Which rows of other nodes batches ask for. Stands in for an exchange, and gives rows of undefined content."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, ...], _Group] = {}
        self.rows = 0
        """How often a row of another node was asked for; once per batch and index."""

    def __call__(self, requests: list[RowRequest], pool: BufferPool) -> list[Tensor]:
        """Note the ids of one batch."""
        by_index: dict[tuple[int, int], list[RowRequest]] = {}
        for request in requests:
            by_index.setdefault((id(request.index), request.source.num_rows), []).append(request)
        for together in by_index.values():
            sources = [request.source for request in together]
            group = self._groups.setdefault(tuple(map(id, sources)), _Group(sources))
            mine = sources[0].shards.rows_of(sources[0].world.node)
            ids = torch.from_numpy(np.unique(together[0].index.long().numpy()))
            ids = ids[(ids < mine.start) | (ids >= mine.stop)]
            group.ids.append(ids)
            self.rows += ids.numel()
        return [pool.empty((r.index.numel(), *r.source.shape[1:]), r.source.dtype) for r in requests]

    def hottest(self, size: float | int) -> list[tuple[list[ShardedRows], Tensor]]:
        """The rows asked for most often, by tensors that are read by the same ids: ``[count] int64``, ascending.

        Args:
            size: a float, share of the rows of each tensor; an integer, bytes of all together. Of rows that are asked
                for as often, those of lower id are taken.
        """
        groups = list(self._groups.values())
        counted = [np.unique(torch.cat(group.ids).numpy(), return_counts=True) for group in groups]
        if isinstance(size, float):
            taken = [
                ids[np.argsort(-counts, kind="stable")[: int(size * group.sources[0].num_rows)]]
                for group, (ids, counts) in zip(groups, counted, strict=True)
            ]
        else:
            taken = _fitting(counted, [group.width for group in groups], size)
        return [(group.sources, torch.from_numpy(np.sort(ids))) for group, ids in zip(groups, taken, strict=True)]


def rows_wanted(sources: Sequence[ShardedRows], size: float | int) -> int:
    """About how many rows a cache of this size holds (see ``Visits.hottest``)."""
    if isinstance(size, float):
        return sum(int(size * source.num_rows) for source in sources)
    return size // max(1, min((source.row_bytes for source in sources), default=1))


def fill(hottest: Sequence[tuple[list[ShardedRows], Tensor]], exchange: Exchange, *, timeout: float) -> None:
    """Have every node keep these rows, which are those of its own choice, once per node. All ranks call it.

    Raises:
        RankError: another rank failed or is late.
        CapacityError: there is not enough memory.
    """
    world, pool = exchange.world, BufferPool(0)
    asks = world.local_rank == 0
    requests = []
    for sources, ids in hottest:
        index = ids if asks else ids[:0]
        requests += [RowRequest(source, index, name="the cache") for source in sources]
    rows = iter(exchange.gather(requests, _TAG, pool=pool))
    for sources, ids in hottest:
        hot = share(lambda ids=ids, n=sources[0].num_rows: HotIndex.of(ids, n), what="the index of a cache")  # type: ignore[misc]
        for source in sources:
            kept = node_memory((len(ids), *source.shape[1:]), source.dtype, "a cache")
            got = next(rows)
            if asks:
                kept.copy_(got)
            source.hot_rows = kept
        for source in sources:
            source.hot = hot
    control.exchange("the cache is filled", {}, timeout=timeout)


def _fitting(counted: Sequence[tuple[np.ndarray, np.ndarray]], widths: Sequence[int], size: int) -> list[np.ndarray]:
    """The ids of each group that fit, the most frequent ones of all groups first."""
    ids = np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in counted)])
    counts = np.concatenate([np.empty(0, np.int64), *(counts for _, counts in counted)])
    group = np.repeat(np.arange(len(counted)), [len(ids) for ids, _ in counted])
    order = np.argsort(-counts, kind="stable")
    order = order[np.cumsum(np.asarray(widths, np.int64)[group[order]]) <= size]
    return [ids[order[group[order] == g]] for g in range(len(counted))]
