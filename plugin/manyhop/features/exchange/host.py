"""Rows that other nodes have: all tensors of a batch in one exchange between all ranks."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import FeatureError
from manyhop.features.buffers import BufferPool
from manyhop.features.exchange.headers import (
    RowExchange,
    Status,
    Tag,
    Traffic,
    compare_headers,
    make_headers,
    signature_of,
)
from manyhop.features.exchange.routes import Pieces, Routes, find_routes, give, number_of_parts, take
from manyhop.features.requests import RowRequest
from manyhop.features.sources import servers
from manyhop.ranks import control
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop.ranks.world import World, init


class Exchange(RowExchange):
    """Gathers rows from the nodes that have them. All ranks make it, and call it in lockstep.

    One exchange answers all requests of all ranks for one batch: ids that this node has are read from its memory, those
    in its cache too, the others are sent once each to the node that has them, which sends the rows of all tensors. Not
    for several threads at once (``manyhop.loading.pipeline`` keeps them in order).

    Args:
        name: for errors.
        timeout: seconds to wait for other ranks.

    Raises:
        RankError: ranks did not come in time.
    """

    _numbers = itertools.count()

    def __init__(self, name: str, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        import torch.distributed as dist

        self.world: World = init(timeout=timeout)
        self.traffic = Traffic()
        self._name, self._store_key = name, f"exchange/{next(self._numbers)}"
        self._servers = servers(self.world)
        self._peers = [rank for node, rank in enumerate(self._servers) if node != self.world.node]
        self._last: Any = None
        self._giver = ThreadPoolExecutor(1, "manyhop-exchange")  # answers others while this rank's answers come
        self._group: Any = None
        control.side_store()  # to find out who is missing, when its process may have ended
        if self.world.num_nodes > 1:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))

    def gather(self, requests: Sequence[RowRequest], tag: Tag, *, pool: BufferPool) -> list[Tensor]:
        """Return ``source[index]`` for each request, whose sources are :class:`ShardedRows`. All ranks call it.

        Args:
            requests: the same sources in the same order on all ranks; every rank has ids of its own, maybe none.
                Those that share an index on one rank do so on all.
            tag: epoch and number; compared, so that ranks that are out of step get an error and not wrong rows.
            pool: memory of results and messages.

        Raises:
            FeatureError: an id is out of range. The other ranks get a RankError that quotes it.
            RankError: another rank failed, left, is gone, late or out of step.
        """
        try:
            routes, outs = find_routes(requests, pool)
        except FeatureError as error:
            self.end(tag, str(error))
            raise
        with self._failing(tag):
            self._exchange(routes, requests, tag, pool)
        return outs

    def end(self, tag: Tag, failure: str = "") -> None:
        """Report to the other ranks that this one takes no part in exchange ``tag``, nor in later ones of this epoch.

        They get a RankError if they come to it themselves. Does not wait for them.
        """
        status = Status.FAILED if failure else Status.LEFT
        with self._failing(tag):
            self._last = self._send_headers(status, tag, 0, failure, [0] * self.world.world_size, 0)[1]

    def begin(self) -> None:
        """Before the first exchange of an epoch: wait until the others know that this rank has left the one before."""
        self._require_open()
        last, self._last = self._last, None
        if last is not None:
            with self._failing((-1, -1)):
                last.wait()

    def all_to_all(self, received: Tensor, sent: Tensor, expected: list[int], sizes: list[int]) -> None:
        """Bytes for every rank, by rank, and bytes from every rank: ``[sum(expected)]`` and ``[sum(sizes)] uint8``.

        Raises:
            RankError: another rank is gone or late.
        """
        with self._failing((-1, -1)):
            self._all_to_all(received, sent, expected, sizes).wait()

    def close(self) -> None:
        """Give the connections back, unless the other ranks have still to read something."""
        import torch.distributed as dist

        group, self._group = self._group, None
        self._giver.shutdown(wait=False)
        super().close()
        if group is not None and (self._last is None or self._last.is_completed()):
            with contextlib.suppress(RuntimeError, ValueError, AssertionError):  # the default group is gone already
                dist.destroy_process_group(group)

    # The steps of an exchange

    def _exchange(self, routes: list[Routes], requests: Sequence[RowRequest], tag: Tag, pool: BufferPool) -> None:
        node, nodes = self.world.node, self.world.num_nodes
        dtype = _id_dtype(requests)
        questions = {rank: self._question(routes, rank, dtype) for rank in self._peers}
        lengths = [questions[rank].numel() if rank in questions else 0 for rank in range(self.world.world_size)]
        widths = [r.width for r in routes]
        others = [other for other in range(nodes) if other != node]
        sizes = (sum(r.count(other) * width for r, width in zip(routes, widths, strict=True)) for other in others)
        largest = max(sizes, default=0)
        parts = number_of_parts(largest, len(self.world.ranks_of(node)))
        headers = self._compare_headers(tag, signature_of(requests), lengths, parts)
        asked = self._ask(questions, [words for words, _ in headers], dtype)
        outgoing: Pieces = {}
        for rank, words in asked.items():
            wanted = zip(routes, _rows_of(words, len(routes)), strict=True)
            outgoing[rank] = [piece for r, rows in wanted for piece in r.pieces_of(rows)]
        incoming: Pieces = {
            rank: [piece for r in routes for piece in r.pieces_from(self.world.nodes[rank])] for rank in self._peers
        }

        def copy_local() -> None:
            for r in routes:
                r.copy_local(node, nodes)

        parts = max(parts for _, parts in headers)
        giving = self._giver.submit(give, self._group, outgoing, parts, pool)
        take(self._group, incoming, parts, pool, copy_local)
        giving.result()
        for r, width in zip(routes, widths, strict=True):
            r.copy_repeated(nodes)
            self.traffic.add(sum(r.count(other) for other in others), width, r.count(nodes))

    def _question(self, routes: list[Routes], rank: int, dtype: torch.dtype) -> Tensor:
        """What to ask a rank for: the number of rows of each index, then the rows. ``[words]`` of a dtype."""
        node = self.world.nodes[rank]
        words = torch.empty(len(routes) + sum(r.count(node) for r in routes), dtype=dtype)
        words[: len(routes)] = torch.tensor([r.count(node) for r in routes])
        for r, rows in zip(routes, torch.split(words[len(routes) :], [r.count(node) for r in routes]), strict=True):
            rows.copy_(r.rows_at(node))
        return words

    def _ask(self, questions: dict[int, Tensor], expected: list[int], dtype: torch.dtype) -> dict[int, Tensor]:
        """Send questions, and receive those of so many words from each rank."""
        import torch.distributed as dist

        asked = {rank: torch.empty(words, dtype=dtype) for rank, words in enumerate(expected) if words}
        works: list[Any] = [dist.irecv(words, rank, group=self._group) for rank, words in asked.items()]
        works += [dist.isend(words, rank, group=self._group) for rank, words in questions.items()]
        while works:
            works.pop().wait()
        return asked

    # Headers

    def _compare_headers(self, tag: Tag, signature: int, lengths: list[int], parts: int) -> list[tuple[int, int]]:
        """Exchange headers with all ranks; return for each the words of its request and the parts that it wants."""
        received, flight = self._send_headers(Status.ASKS, tag, signature, "", lengths, parts)
        flight.wait()
        return compare_headers(self._name, received.view(self.world.world_size, -1), self.world.rank, tag)

    def _send_headers(
        self, status: Status, tag: Tag, signature: int, text: str, lengths: list[int], parts: int
    ) -> tuple[Tensor, Any]:
        headers = make_headers(status, tag, signature, text, lengths, parts)
        received = torch.empty(headers.numel(), dtype=torch.int64)
        return received, self._all_to_all(received, headers.view(-1), [], [])

    def _all_to_all(self, received: Tensor, sent: Tensor, expected: list[int], sizes: list[int]) -> Any:
        import torch.distributed as dist

        return dist.all_to_all_single(received, sent, expected, sizes, group=self._group, async_op=True)

    def _disconnect(self) -> None:
        """Close the connections, which wakes the ranks that wait for this one."""
        self._last = None
        self.close()


def _id_dtype(requests: Sequence[RowRequest]) -> torch.dtype:
    """In which row numbers travel: the same on all ranks."""
    return torch.int32 if all(r.source.num_rows < 2**31 for r in requests) else torch.int64


def _rows_of(words: Tensor, count: int) -> tuple[Tensor, ...]:
    """The rows that a question asks for of each index, ``[count] int64``."""
    return torch.split(words[count:].long(), words[:count].tolist())
