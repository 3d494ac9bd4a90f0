"""Gathers of rows that other ranks hold: the part that is the same over gloo and over NCCL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from manyhop.errors import FeatureError, RankError
from manyhop.features.buffers import BufferPool
from manyhop.features.exchange.headers import ExchangeEndedError, Status, Tag, lost
from manyhop.features.exchange.requested import Pattern
from manyhop.features.requests import RowRequest
from manyhop.ranks.world import World, init


@dataclass
class Traffic:
    """Rows that exchanges have moved."""

    bytes_received: int = 0
    """Bytes of rows from other nodes or ranks."""
    rows_received: int = 0
    """Ids requested from other nodes or ranks, each once per exchange."""
    rows_cached: int = 0
    """Ids of other nodes or ranks whose rows were cached."""

    def add(self, rows: int, row_bytes: int, cached: int) -> None:
        """Add the rows of one index, with the bytes of a row of all of its tensors."""
        self.rows_received += rows
        self.bytes_received += rows * row_bytes
        self.rows_cached += cached


class RowExchange:
    """Gather rows that other ranks hold. All ranks create it, and call it in lockstep.

    One exchange serves all requests of all ranks for one batch. After a failure, it is closed on all ranks. Not
    thread-safe: the loading pipeline orders the calls. Its backends are ``Exchange``, between the host memory of nodes,
    and ``GPUExchange``.

    Args:
        name: name of the exchange in errors.
        store_key: key of the exchange in the ranks' store: the same on all ranks, unique per exchange.
        timeout: seconds to wait for other ranks.

    Raises:
        RankError: a rank is late.
    """

    released_later: bool = False
    """Whether :meth:`release` is called after a failure, when no step waits for rows that may not arrive."""

    lacks_rows: bool = False
    """Whether rows that :meth:`release` was called for had been handed out before they arrived."""

    def __init__(self, name: str, store_key: str, timeout: float) -> None:
        self.world: World = init(timeout=timeout)
        self.traffic = Traffic()
        self._name, self._store_key, self._timeout = name, store_key, timeout
        self._ended: RankError | None = None
        self._pattern: Pattern | None = None
        self._last: Any = None  # the announcement of the end of an epoch, in flight

    def gather(self, requests: Sequence[RowRequest], tag: Tag, *, pool: BufferPool | None = None) -> list[Tensor]:
        """Return ``source[index]`` for each request, whose sources are :class:`RowsInParts`. All ranks call it.

        On a GPU, enqueue it on the current stream, and wait once for the counts of the other ranks.

        Args:
            requests: the same sources in the same order on all ranks; the ids of a rank are its own, maybe none.
                Requests that share an index on one rank do so on all.
            tag: epoch and number; compared, so that ranks out of step raise instead of returning wrong rows.
            pool: pool of CPU memory for results and messages; ``None``: torch allocates it.

        Raises:
            FeatureError: an id is out of range. The other ranks get a RankError.
            RankError: another rank failed, left, is gone, late or out of step.
        """
        with self._failing(tag), self._on_device():
            pattern = self._pattern
            if pattern is None or not pattern.fits(requests):
                pattern = self._pattern = Pattern(requests)
            return self._gather(requests, pattern, tag, pool)

    def end(self, tag: Tag, failure: str = "") -> None:
        """Announce that this rank takes no part in exchange ``tag`` or later ones of this epoch.

        Other ranks raise RankError in that exchange. Does not wait for them.
        """
        with self._failing(tag), self._on_device():
            self._announce_end(Status.FAILED if failure else Status.LEFT, tag, failure)

    def begin(self) -> None:
        """Begin an epoch: wait until the other ranks have received the end of the previous one."""
        with self._failing((-1, -1)), self._on_device():
            self._announce_owed()
            last, self._last = self._last, None
            if last is not None:
                last.wait()

    @property
    def failure(self) -> RankError | None:
        """The error that ended the exchange, if one has."""
        return self._ended

    def rows_under_way(self) -> bool:
        """Return whether rows that were handed out have not arrived on this rank's GPU yet."""
        return False

    def release(self) -> None:
        """After a failure, stop waiting for rows on this rank's GPU."""

    def rest(self) -> None:
        """Let other exchanges have the communicator until the next call. All ranks do so after the same exchange."""

    def close(self) -> None:
        """End the exchange on this rank."""
        self._pattern = None  # and the tensors that it keeps
        self._ended = self._ended or RankError(f"{self._name}: the exchange is closed.")

    def leave(self) -> None:
        """Close at the end of the run, whatever the other ranks do."""
        self.close()

    def _gather(
        self, requests: Sequence[RowRequest], pattern: Pattern, tag: Tag, pool: BufferPool | None
    ) -> list[Tensor]:
        raise NotImplementedError

    def _announce_end(self, status: Status, tag: Tag, text: str) -> None:
        """Begin to announce the end of an epoch; :meth:`begin` waits for it."""
        raise NotImplementedError

    def _announce_owed(self) -> None:
        """Begin to announce an end that had to wait."""

    def _on_device(self) -> AbstractContextManager[Any]:
        """Make this rank's GPU current within the context."""
        return contextlib.nullcontext()

    def _disconnect(self) -> None:
        """Close the connections, which unblocks the ranks that wait for this one."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _failing(self, tag: Tag) -> Iterator[None]:
        """End the exchange on all ranks if the body raises, unless all ranks raise alike."""
        if self._ended is not None:
            raise RankError(str(self._ended), ranks=self._ended.ranks)
        try:
            yield
        except (ExchangeEndedError, FeatureError):  # raised on all ranks, after which exchanges continue
            raise
        except RankError as error:
            self._ended = error
            raise
        except RuntimeError as error:
            self._disconnect()
            self._ended = lost(self._name, self._store_key, tag, self.world, error)
            raise self._ended from error
        except BaseException as error:
            self._ended = RankError(f"{self._name}: an exchange was broken off: {error!r}")
            self._disconnect()
            raise
