"""Heartbeats of ranks, and fault detection from those of all ranks, without threads, clocks and stores.

Heartbeats contain counters instead of times, since clocks differ.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from manyhop.errors import RankError
from manyhop.ranks.control import rank_names
from manyhop.system.failure import failed_batch, text_of
from manyhop.system.units import counted

_TEXT = 600  # characters of an error


class End(NamedTuple):
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


class LoopStatus(NamedTuple):
    """State of a rank in one loader."""

    iteration: int = 0
    """The current or last iteration, from 1; 0 before the first."""

    epoch: int = 0
    received: int = 0
    """Batches received in this iteration."""

    phase: str = "out"
    """``making`` (waits for its next batch), ``step`` (works on its last one), ``out`` (not in an iteration)."""

    ends: tuple[End, ...] = ()
    """Ends of the last iterations, for slower ranks."""

    @property
    def inside(self) -> bool:
        """Whether the rank is in an iteration."""
        return self.phase != "out"

    @property
    def progress(self) -> tuple[int, float]:
        """Increases with each batch and iteration."""
        return self.iteration, self.received if self.inside else float("inf")


class Heartbeat(NamedTuple):
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

    loops: dict[int, LoopStatus] = {}  # noqa: RUF012  # never changed
    """State by number of the loader."""

    def encode(self) -> str:
        return json.dumps(self, separators=(",", ":"))

    @staticmethod
    def decode(text: str | bytes) -> Heartbeat:
        *fields, followed, loops = json.loads(text)
        decoded = {
            int(number): LoopStatus._make([*loop, tuple(End._make([*end, tuple(ranks)]) for *end, ranks in ends)])
            for number, (*loop, ends) in loops.items()
        }
        return Heartbeat._make([*fields, None if followed is None else tuple(followed), decoded])


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


class Fault(NamedTuple):
    """The reason for which ranks cannot continue together."""

    kind: str
    """Kind of an ``End``, or ``silent``, ``idle``, ``store``."""

    ranks: tuple[int, ...]
    """The ranks at fault, if known."""

    text: str

    @property
    def has_deeper_reason(self) -> bool:
        """Whether a fault that is not reported yet may be the cause."""
        return self.kind in ("left", "idle") or (self.kind == "followed" and not self.ranks)


class FaultDetector:
    """Finds the rank for which others cannot get their next batch, from the latest heartbeats.

    The process of rank ``store_holder`` holds the store; ``None``: torchrun's agent.
    """

    def __init__(self, rank: int, world_size: int, store_holder: int | None = None) -> None:
        self.rank, self.store_holder = rank, store_holder
        self.heartbeats: list[Heartbeat | None] = [None] * world_size
        self.silent = [0.0] * world_size
        """Seconds without a new heartbeat."""
        self._idle = [0.0] * world_size
        self.store_silence = 0.0
        """Seconds since the store answered."""
        self.lost = ""
        """The error of the store, once it has ended."""

    def update(self, heartbeats: Sequence[Heartbeat | None], seconds: float) -> None:
        """Set the latest heartbeat of each rank, ``seconds`` after the previous update."""
        self.store_silence = 0.0
        moved = []
        for rank, (old, new) in enumerate(zip(self.heartbeats, heartbeats, strict=True)):
            ticked = new is not None and (old is None or new.tick != old.tick or new.end is not None)
            self.silent[rank] = 0.0 if ticked else self.silent[rank] + seconds
            moved.append(old is None or new is None or new.moves != old.moves)
        self._idle = [0.0 if m else idle + seconds for m, idle in zip(moved, self._idle, strict=True)]
        self.heartbeats = list(heartbeats)

    def _ends(self, number: int, iteration: int) -> list[tuple[int, End]]:
        """Return the ends of an iteration on other ranks."""
        return [(r, end) for r, _, loop in self._others(number) for end in loop.ends if end.iteration == iteration]

    def _others(self, number: int) -> list[tuple[int, Heartbeat, LoopStatus]]:
        """Return the other ranks that have reported a loader."""
        return [
            (rank, beat, beat.loops[number])
            for rank, beat in enumerate(self.heartbeats)
            if rank != self.rank and beat is not None and number in beat.loops
        ]

    def fault(
        self,
        number: int,
        iteration: int,
        received: float,
        silence: float,
        *,
        suspicion: float | None = None,
        inside: bool = True,
    ) -> Fault | None:
        """Return the fault for which this rank cannot receive its next batch; ``None``: there is none.

        Args:
            number: number of the loader.
            iteration: number of this rank's iteration.
            received: batches that this rank has received in it.
            silence: seconds without a heartbeat after which a rank is lost.
            suspicion: replaces ``silence`` if something is known to be wrong: also the seconds after which an idle rank
                is at fault. ``None``: a rank may be idle for any time, since the user's collectives have their own
                timeout.
            inside: whether this rank is in its loop. Otherwise only ranks in their loops can be at fault.
        """
        others, limit = self._others(number), silence if suspicion is None else suspicion
        in_loop = [rank for rank, _, loop in others if loop.inside]
        idle = [
            rank
            for rank, beat, loop in others
            if suspicion is not None
            and self._idle[rank] > suspicion
            and not beat.waits
            and loop.inside
            and loop.progress <= (iteration, received)
        ]
        ends: list[tuple[int, End]] = []
        quit_between: list[tuple[int, Heartbeat]] = []
        if inside:
            in_loop = [rank for rank in range(len(self.silent)) if rank != self.rank]  # even if they never reported it
            ends = self._ends(number, iteration)
            for rank, beat, loop in others:
                if beat.end is None or loop.iteration >= iteration:
                    continue
                if beat.followed is None:
                    quit_between.append((rank, beat))
                else:
                    ends.append((rank, End(iteration, 0, 0, "followed", beat.end, beat.followed)))
        return (
            self._ended(ends, "failed")
            or self._silent(number, [rank for rank in in_loop if self.silent[rank] > limit])
            or self._ended(ends, "quit")
            or self._quit_between(number, quit_between)
            or self._ended([(rank, end) for rank, end in ends if end.received <= received], "left")
            or self._idling(number, idle, limit)
            or self._followed(ends)
            or self._store_lost(silence)
        )

    def ended_early(self, number: int, iteration: int, received: int) -> Fault | None:
        """Return the fault of ranks that left an iteration early, if this rank has received all of its batches."""
        early = [(rank, end) for rank, end in self._ends(number, iteration) if end.received < received]
        return self._ended(early, "failed", "quit", "left")

    def failed(self, number: int, iteration: int) -> Fault | None:
        """Return the fault of ranks that had their own error in an iteration."""
        return self._ended([(rank, end) for rank, end in self._ends(number, iteration) if end.text], "failed", "quit")

    def all_ended(self) -> bool:
        """Return whether the programs of all other ranks have ended."""
        return all(
            rank == self.rank or (beat is not None and beat.end is not None)
            for rank, beat in enumerate(self.heartbeats)
        )

    def _ended(self, ends: Sequence[tuple[int, End]], *kinds: str) -> Fault | None:
        chosen = next((found for kind in kinds if (found := [one for one in ends if one[1].kind == kind])), None)
        if chosen is None:
            return None
        rank, end = min(chosen, key=lambda one: one[1].received)  # others may have left because of this one
        ranks = tuple(rank for rank, _ in chosen)
        others = f" ({rank_names(ranks)} did so.)" if len(ranks) > 1 else ""
        after = f"after {counted(end.received, 'batch')} of epoch {end.epoch}"
        texts = {
            "failed": f"rank {rank} failed {after}: {end.text}",
            "quit": f"rank {rank} ended its program {after}" + (f": {end.text}" if end.text else "."),
            "left": f"rank {rank} left its loop {after}, while others ask for more. If its step failed, its own output "
            "has the error; a break has to come after the same batch on all ranks.",
        }
        return Fault(end.kind, ranks, texts[end.kind] + others)

    def _quit_between(self, number: int, chosen: Sequence[tuple[int, Heartbeat]]) -> Fault | None:
        if not chosen:
            return None
        rank, beat = chosen[0]
        loop = beat.loops[number]
        when = f"after {counted(loop.iteration, 'epoch')}"
        if loop.ends and loop.ends[-1].iteration == loop.iteration:
            when = f"when it had left its loop after {counted(loop.received, 'batch')} of epoch {loop.epoch}"
        why = f": {beat.end}" if beat.end else ". Every rank has to go through the same number of epochs."
        return Fault("quit", tuple(r for r, _ in chosen), f"rank {rank} ended its program {when}{why}")

    def _silent(self, number: int, ranks: Sequence[int]) -> Fault | None:
        if not ranks:
            return None
        seconds = min(self.silent[rank] for rank in ranks)
        text = (
            f"{rank_names(ranks)} gave no sign of life for {seconds:.1f} s: killed, stopped, or cut off. "
            f"Last known: {self.known(number, ranks[0])}. Look for its error; it may have run out of memory."
        )
        return Fault("silent", tuple(ranks), text)

    def _idling(self, number: int, ranks: Sequence[int], seconds: float) -> Fault | None:
        if not ranks:
            return None
        text = (
            f"{rank_names(ranks)} did not come to the next batch for {seconds:g} s, while others need it. Last known: "
            f"{self.known(number, ranks[0])}."
        )
        return Fault("idle", tuple(ranks), text)

    def _followed(self, ends: Sequence[tuple[int, End]]) -> Fault | None:
        chosen = [(rank, end) for rank, end in ends if end.kind == "followed"]
        if not chosen:
            return None
        rank, end = next(((rank, end) for rank, end in chosen if end.ranks), chosen[0])
        return Fault("followed", end.ranks, f"{end.text} (reported by rank {rank})")

    def _store_lost(self, silence: float) -> Fault | None:
        holder = self.store_holder
        beat = None if holder is None else self.heartbeats[holder]
        if holder == self.rank or (beat is not None and beat.end == ""):
            return None  # it has finished its work: no rank needs the watch
        if not self.lost and self.store_silence <= silence:
            return None
        what = f"cannot be reached ({self.lost})" if self.lost else f"has not answered for {self.store_silence:.0f} s"
        who = "torchrun's agent" if holder is None else f"the process of rank {holder}"
        return Fault(
            "store",
            () if holder is None else (holder,),
            f"the store of the process group {what}: {who}, which holds it, was killed or stopped, or is cut off.",
        )

    def known(self, number: int, rank: int) -> str:
        """Return the position of a rank in a loader, by its latest heartbeat."""
        beat = self.heartbeats[rank]
        loop = LoopStatus() if beat is None else beat.loops.get(number, LoopStatus())
        if beat is None or loop.iteration == 0:
            return "before its first epoch"
        if not loop.inside:
            return f"out of its loop, after epoch {loop.epoch}"
        doing = {"making": "waiting for its next batch", "step": "in its step"}[loop.phase]
        at = f" at {beat.place}" if beat.place else ""
        return f"{counted(loop.received, 'batch')} of epoch {loop.epoch} received, {doing}{at}"

    def table(self, number: int) -> str:
        """Return the state of each rank, one line each."""
        lines = []
        for rank in range(len(self.heartbeats)):
            ago = f"; last sign {self.silent[rank]:.1f} s ago" if self.silent[rank] > 1 else ""
            beat = self.heartbeats[rank]
            ended = "; its program has ended" if beat is not None and beat.end is not None else ""
            lines.append(f"  rank {rank}: {self.known(number, rank)}{ago}{ended}")
        return "\n".join(lines)
