"""Headers that ranks send each other at the beginning of an exchange, and the errors of an exchange that fails."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

from manyhop.errors import RankError
from manyhop.ranks import control
from manyhop.ranks.world import World

Tag = tuple[int, int]
"""Epoch and number of the exchange in it, from 0: the same on all ranks."""

_HEAD = 6  # numbers in a header: status, epoch, batch, what is asked for, its words, parts of answers
_TEXT_WORDS = 48
HEADER_WORDS = _HEAD + _TEXT_WORDS
_GRACE_SECONDS = 2.0  # ranks that lose an exchange do so within that time of each other
_BROKEN = ("closed", "reset", "broken pipe")  # in errors of connections whose other end is gone


class Status(IntEnum):
    """What a rank has come for."""

    ASKS = 0x6D616E79  # a number that other data does not begin with
    LEFT = ASKS + 1
    FAILED = ASKS + 2


class ExchangeEndedError(RankError):
    """Another rank has left its loop, or failed: there are no further exchanges in this epoch."""

    without_reason = False
    """Whether the other rank has left, and why is not known."""


class ExchangeLostError(RankError):
    """The connection to other ranks broke, or they did not come to an exchange in time."""

    may_be_late = True
    """Whether the ranks may still come; not where the connection to them has broken."""


def make_headers(status: Status, tag: Tag, signature: int, text: str, lengths: Sequence[int], parts: int = 0) -> Tensor:
    """Return the header for each rank, ``[world_size, HEADER_WORDS] int64``.

    Args:
        status: of this rank.
        tag: of the exchange.
        signature: of what is asked for (see :func:`signature_of`).
        text: why this rank failed.
        lengths: ``[world_size]``: numbers that it asks each rank.
        parts: in how many its answers come.
    """
    headers = torch.zeros(len(lengths), HEADER_WORDS, dtype=torch.int64)
    headers[:, :_HEAD] = torch.tensor([status, *tag, signature, 0, parts])
    headers[:, 4] = torch.tensor(lengths)
    encoded = text.encode()[: 8 * _TEXT_WORDS]
    headers[:, _HEAD:].view(torch.uint8)[:, : len(encoded)] = torch.frombuffer(
        bytearray(encoded or b"\0"), dtype=torch.uint8
    )[: len(encoded)]
    return headers


def compare_headers(name: str, headers: Tensor, rank: int, tag: Tag) -> list[tuple[int, int]]:
    """Return for each rank the words of its request and the parts that it wants, by its header.

    Args:
        name: of the exchange, for errors.
        headers: ``[world_size, HEADER_WORDS] int64``: that of each rank, this one included.
        rank: this one.
        tag: of the exchange.

    Raises:
        ExchangeEndedError: a rank failed, or has left.
        RankError: a rank is at another exchange, or asks for other tensors, or by indices that are shared otherwise.
    """
    heads = headers[:, :_HEAD].tolist()
    for status in (Status.FAILED, Status.LEFT):
        ranks = tuple(r for r, head in enumerate(heads) if head[0] == status)
        if ranks:
            text = _text(headers[ranks[0]])
            what = f"failed: {text}" if text else f"left the loop of epoch {tag[0]} after {tag[1]} batches"
            error = ExchangeEndedError(f"{name}: {control.rank_names(ranks)} {what}", ranks=ranks)
            error.without_reason = not text
            raise error
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
            f"{control.rank_names([different[0]])} {what}. Ranks that share batches have to take the same number.",
            ranks=tuple(different),
        )
    return [(words, parts) for *_, words, parts in heads]


def has_reason(header: Tensor) -> bool:
    """Return whether the header of a rank that failed, ``[HEADER_WORDS] int64``, has the reason."""
    return bool(header[_HEAD] != 0)


def absent(key: str, world: World) -> tuple[int, ...]:
    """Return the ranks that have not reported in the store that they lost the exchange ``key`` too."""
    missing = [rank for rank in range(world.world_size) if rank != world.rank]
    store = control.side_store()
    if store is None:
        return ()
    try:
        store.set(f"{key}/{world.rank}", "")
        end = time.monotonic() + _GRACE_SECONDS
        while missing and time.monotonic() < end:
            missing = [missing[k] for k in control.absent(store, [f"{key}/{rank}" for rank in missing])]
            time.sleep(0.02)
    except RuntimeError:  # whoever holds the store has gone
        return ()
    return tuple(missing)


def lost(name: str, key: str, tag: Tag, world: World, error: RuntimeError) -> ExchangeLostError:
    """Return the error of a connection that fails, or of no answer; ``key`` names the exchange in the store."""
    missing = absent(f"{key}/{tag[0]}/{tag[1]}", world)
    who = f"{control.rank_names(missing)} did not come, or ended" if missing else "a rank ended or is late"
    cause = str(error).splitlines()[0] if str(error) else repr(error)
    found = ExchangeLostError(f"{name}: exchange {tag[1]} of epoch {tag[0]}: {who} ({cause}).", ranks=missing)
    found.may_be_late = not any(word in cause.lower() for word in _BROKEN)
    return found


def _text(header: Tensor) -> str:
    words = header[_HEAD:HEADER_WORDS].contiguous()
    return bytes(words.view(torch.uint8).tolist()).rstrip(b"\0").decode(errors="ignore")
