"""Heartbeats: the states of a rank's loops. They contain counters instead of times, since clocks differ."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from manyhop.errors import RankError
from manyhop.system.failure import failed_batch, text_of

KEPT_ENDS = 4  # ends of former iterations in a heartbeat, for slower ranks
_TEXT = 600  # characters of an error


@dataclass(frozen=True)
class End:
    """The end of an iteration over a loader before its last batch."""

    iteration: int
    """Number of the iteration, from 1."""

    epoch: int
    received: int
    """Batches that the rank had received in it."""

    kind: str
    """``left`` (a break, or an error in the step), ``quit`` (the program ended), ``failed`` (making a batch failed),
    ``followed`` (a different rank was at fault)."""

    text: str = ""
    ranks: tuple[int, ...] = ()
    """For ``followed``: the ranks at fault, if known."""


@dataclass(frozen=True)
class LoopStatus:
    """State of a rank in one loader."""

    iteration: int = 0
    """The current or last iteration, from 1; 0 before the first."""

    epoch: int = 0
    received: int = 0
    """Batches received in this iteration."""

    phase: str = "out"
    """``making`` (waits for its next batch), ``step`` (works on its last one), ``out`` (not in an iteration)."""

    ends: tuple[End, ...] = ()

    @property
    def inside(self) -> bool:
        """Whether the rank is in an iteration."""
        return self.phase != "out"

    @property
    def progress(self) -> tuple[int, float]:
        """Increases with each batch and iteration."""
        return self.iteration, self.received if self.inside else float("inf")


@dataclass(frozen=True)
class Heartbeat:
    """The state that a rank publishes about once a second."""

    tick: int = 0
    """Increases with each heartbeat."""

    moves: int = 0
    """Increases with each action of the rank on any loader."""

    waits: bool = False
    """Whether it has been in a collective for a while."""

    place: str = ""
    """Position of its loop for a while: file, line, function."""

    end: str | None = None
    """Set when its program ends: the error, or an empty text."""

    followed: tuple[int, ...] | None = None
    """The ranks at fault for that end, if known and others."""

    loops: dict[int, LoopStatus] = field(default_factory=dict)
    """State by number of the loader."""

    def encode(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def decode(text: str | bytes) -> Heartbeat:
        fields = json.loads(text)
        loops = {int(number): _loop_status(loop) for number, loop in fields.pop("loops").items()}
        followed = fields.pop("followed")
        return Heartbeat(**fields, followed=None if followed is None else tuple(followed), loops=loops)


def _loop_status(fields: dict[str, object]) -> LoopStatus:
    ends = fields.pop("ends")
    assert isinstance(ends, list)
    return LoopStatus(**fields, ends=tuple(End(**{**end, "ranks": tuple(end["ranks"])}) for end in ends))  # type: ignore[arg-type]


def described(error: BaseException) -> str:
    """Return an error and its batch as text, for other ranks."""
    text, failed = text_of(error), failed_batch(error)
    if failed is not None:
        text = f"batch {failed[1]} of epoch {failed[0]}: {text}"
    return text if len(text) <= _TEXT else text[:_TEXT] + " ..."


def reason(error: BaseException, own: str) -> tuple[str, str, tuple[int, ...]]:
    """Return kind, text and ranks of the ``End`` by an error; ``own``: the kind if this rank is at fault."""
    if isinstance(error, RankError):
        return "followed", str(error), error.ranks
    return "followed" if is_of_communication(error) else own, described(error), ()


def is_of_communication(error: BaseException) -> bool:
    """Return whether an error only means that a peer did not answer: then a different rank is at fault."""
    cause: BaseException | None = error
    known: set[int] = set()
    while cause is not None and id(cause) not in known:  # causes may form a cycle
        text = text_of(cause).lower()
        if isinstance(cause, RuntimeError) and any(word in text for word in ("gloo", "nccl", "connection closed")):
            return True
        known.add(id(cause))
        cause = cause.__cause__
    return False
