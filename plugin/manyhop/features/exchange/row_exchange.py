"""Gathers of rows that other ranks hold: headers and errors, and the part that is the same over gloo and over NCCL."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from manyhop.errors import FeatureError, RankError
from manyhop.features.buffers import BufferPool
from manyhop.features.exchange.requested import Pattern
from manyhop.features.requests import RowRequest
from manyhop.ranks import control
from manyhop.ranks.world import World, init
from manyhop.system.units import counted

Tag = tuple[int, int]
"""Epoch and number of the exchange in it, from 0: equal on all ranks."""

_HEAD = 6  # numbers in a header: status, epoch, batch, signature, words, parts of answers
_TEXT_WORDS = 48
HEADER_WORDS = _HEAD + _TEXT_WORDS
_GRACE_SECONDS = 2.0  # ranks that lose an exchange do so within that time of each other
_BROKEN = ("closed", "reset", "broken pipe")  # in errors of connections whose other end is closed


class Status(IntEnum):
    """The part of a rank in an exchange."""

    ASKS = 0x6D616E79  # a number that other data does not begin with
    LEFT = ASKS + 1
    FAILED = ASKS + 2


class ExchangeEndedError(RankError):
    """Another rank has left its loop, or failed: exchanges of this epoch have ended."""

    without_reason = False
    """Whether the other rank has left, and why is not known."""


class ExchangeLostError(RankError):
    """The connection to other ranks broke, or they are late."""

    may_be_late = True
    """Whether the ranks may only be late: their connection has not broken."""


def make_headers(status: Status, tag: Tag, signature: int, text: str, lengths: Sequence[int], parts: int = 0) -> Tensor:
    """Return the header for each rank, ``[world_size, HEADER_WORDS] int64``.

    Args:
        status: of this rank.
        tag: of the exchange.
        signature: signature of the requests, see ``Pattern``.
        text: why this rank failed.
        lengths: ``[world_size]``: words of the request to each rank.
        parts: number of parts of the rows that it requests.
    """
    headers = torch.zeros(len(lengths), HEADER_WORDS, dtype=torch.int64, device="cpu")
    headers[:, :_HEAD] = torch.tensor([status, *tag, signature, 0, parts], device="cpu")
    headers[:, 4] = torch.tensor(lengths, device="cpu")
    encoded = text.encode()[: 8 * _TEXT_WORDS]
    headers[:, _HEAD:].view(torch.uint8)[:, : len(encoded)] = torch.frombuffer(
        bytearray(encoded or b"\0"), dtype=torch.uint8
    )[: len(encoded)]
    return headers


def compare_headers(name: str, headers: Tensor, rank: int, tag: Tag) -> list[tuple[int, int]]:
    """Return for each rank the words of its request and the number of parts, by its header.

    Raises:
        ExchangeEndedError: a rank failed, or has left.
        RankError: a rank is at another exchange, or requests other tensors, or by indices that are shared otherwise.
    """
    heads = headers[:, :_HEAD].tolist()
    for status in (Status.FAILED, Status.LEFT):
        ranks = tuple(r for r, head in enumerate(heads) if head[0] == status)
        if ranks:
            text = reason_in(headers[ranks[0]])
            what = f"failed: {text}" if text else f"left the loop of epoch {tag[0]} after {counted(tag[1], 'batch')}"
            error = ExchangeEndedError(f"{name}: {control.rank_names(ranks)} {what}", ranks=ranks)
            error.without_reason = not text
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
    different = [r for r, head in enumerate(heads) if head[:4] != heads[rank][:4]]
    if different:
        _, epoch, number, *_ = heads[different[0]]
        what = (
            "asks for other tensors, or by other indices"
            if (epoch, number) == tag
            else f"is at exchange {number} of epoch {epoch}"
        )
        raise RankError(
            f"{name}: expected all ranks at exchange {tag[1]} of epoch {tag[0]} with the same tensors, but "
            f"{control.rank_names([different[0]])} {what}. Ranks that share batches must read the same number of them.",
            ranks=tuple(different),
        )
    return [(words, parts) for *_, words, parts in heads]


def _lost(name: str, key: str, world: World, tag: Tag, error: RuntimeError) -> ExchangeLostError:
    """Return the error of a connection that fails, or of no answer.

    It names the ranks that have not reported the loss of the exchange ``key`` in the store.
    """
    missing, key = [rank for rank in range(world.world_size) if rank != world.rank], f"{key}/{tag[0]}/{tag[1]}"
    try:
        store = control.side_store()
        if store is None:
            missing = []
        else:
            store.set(f"{key}/{world.rank}", "")
        end = time.monotonic() + _GRACE_SECONDS
        while missing and time.monotonic() < end:
            missing = [missing[k] for k in control.absent(store, [f"{key}/{rank}" for rank in missing])]
            time.sleep(0.02)
    except RuntimeError:  # the process that holds the store has ended
        missing = []
    who = f"{control.rank_names(missing)} did not come, or ended" if missing else "a rank ended or is late"
    cause = str(error).splitlines()[0] if str(error) else repr(error)
    found = ExchangeLostError(f"{name}: exchange {tag[1]} of epoch {tag[0]}: {who} ({cause}).", ranks=tuple(missing))
    found.may_be_late = not any(word in cause.lower() for word in _BROKEN)
    return found


def reason_in(header: Tensor) -> str:
    """Return the reason in the header of a rank that failed, ``[HEADER_WORDS] int64``."""
    words = header[_HEAD:HEADER_WORDS].contiguous()
    return bytes(words.view(torch.uint8).tolist()).rstrip(b"\0").decode(errors="ignore")


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
        """Add the rows of one index, with the bytes of a row, summed over its tensors."""
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
        store_key: key of the exchange in the ranks' store: equal on all ranks, unique per exchange.
        timeout: seconds to wait for other ranks.

    Raises:
        RankError: a rank is late.
    """

    released_later: bool = False
    """Whether :meth:`release` is called after a failure, when no step waits for rows that may not arrive."""

    lacks_rows: bool = False
    """Whether rows that :meth:`release` was called for were returned before they arrived."""

    def __init__(self, name: str, store_key: str, timeout: float) -> None:
        self.world: World = init(timeout=timeout)
        self.traffic = Traffic()
        self._name, self._store_key, self._timeout = name, store_key, timeout
        self.failure: RankError | None = None
        """The error that ended the exchange, if one has."""
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
        """Announce that this rank does not join exchange ``tag`` or later ones of this epoch.

        Other ranks raise RankError in that exchange. Does not wait for them.
        On GPUs, a rank that has had no exchange since :meth:`rest` may have no communicator: then the others learn of
        it when it calls :meth:`begin`, or are late.
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

    def rows_under_way(self) -> bool:
        """Return whether returned rows have not arrived on this rank's GPU yet."""
        return False

    def release(self) -> None:
        """Stop waiting for rows on this rank's GPU, after a failure."""

    def rest(self) -> None:
        """Let other exchanges have the communicator until the next call. All ranks do so after the same exchange."""

    def close(self) -> None:
        """End the exchange on this rank."""
        self._pattern = None  # and the tensors that it keeps
        self.failure = self.failure or RankError(f"{self._name}: the exchange is closed.")

    def _gather(
        self, requests: Sequence[RowRequest], pattern: Pattern, tag: Tag, pool: BufferPool | None
    ) -> list[Tensor]:
        raise NotImplementedError

    def _announce_end(self, status: Status, tag: Tag, text: str) -> None:
        """Begin to announce the end of an epoch; :meth:`begin` waits for it."""
        raise NotImplementedError

    def _announce_owed(self) -> None:
        """Begin to announce an end that was postponed."""

    def _on_device(self) -> AbstractContextManager[Any]:
        """Make this rank's GPU current within the context."""
        return contextlib.nullcontext()

    def _disconnect(self) -> None:
        """Close the connections, which unblocks the ranks that wait for this one."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _failing(self, tag: Tag) -> Iterator[None]:
        """End the exchange on all ranks if the body raises, unless all ranks raise the same error."""
        if self.failure is not None:
            raise RankError(str(self.failure), ranks=self.failure.ranks)
        try:
            yield
        except (ExchangeEndedError, FeatureError):  # raised on all ranks; exchanges continue
            raise
        except RankError as error:
            self.failure = error
            raise
        except RuntimeError as error:
            self._disconnect()
            self.failure = _lost(self._name, self._store_key, self.world, tag, error)
            raise self.failure from error
        except BaseException as error:
            self.failure = RankError(f"{self._name}: an exchange was broken off: {error!r}")
            self._disconnect()
            raise
