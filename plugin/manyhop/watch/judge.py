"""Decides from the signs of all ranks whether one is at fault. Pure: no thread, no clock, no store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from manyhop.control import ranks_said
from manyhop.watch.signs import End, LoopSign, Sign


@dataclass(frozen=True)
class Fault:
    """Why the ranks cannot go on together."""

    kind: str
    """That of an ``End``; or ``silent``, ``idle``, ``store``."""

    ranks: tuple[int, ...]
    """Whose fault it is, where known."""

    text: str

    @property
    def has_deeper_reason(self) -> bool:
        """Whether this may be the consequence of something that is not known yet."""
        return self.kind in ("left", "idle") or (self.kind == "followed" and not self.ranks)


class Judge:
    """What this rank knows of all.

    Args:
        rank: this rank.
        world_size: number of ranks.
        store_holder: the rank whose process holds the store, where that is one of them.
    """

    def __init__(self, rank: int, world_size: int, store_holder: int | None = None) -> None:
        self.rank, self.store_holder = rank, store_holder
        self.signs: list[Sign | None] = [None] * world_size
        self.silent = [0.0] * world_size
        """Seconds without a new sign."""
        self._idle = [0.0] * world_size
        self.since_heard = 0.0
        """Seconds since the store answered."""
        self.lost = ""
        """The error of the store, once it is gone."""

    def hear(self, signs: Sequence[Sign | None], seconds: float) -> None:
        """Take the latest sign of every rank, ``seconds`` after the ones before."""
        self.since_heard = 0.0
        moved = []
        for rank, (old, new) in enumerate(zip(self.signs, signs, strict=True)):
            ticked = new is not None and (old is None or new.tick != old.tick or new.end is not None)
            self.silent[rank] = 0.0 if ticked else self.silent[rank] + seconds
            moved.append(old is None or new is None or new.moves != old.moves)
        self._idle = [0.0 if m else idle + seconds for m, idle in zip(moved, self._idle, strict=True)]
        self.signs = list(signs)

    def _that_know(self, number: int) -> list[tuple[int, Sign]]:
        return [(rank, sign) for rank, sign in enumerate(self.signs) if sign is not None and number in sign.loops]

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
        """What keeps this rank from receiving another batch, if anything does.

        Args:
            number: of the loader.
            iteration: this rank's.
            received: batches it has received in it.
            silence: seconds without a sign of life after which a rank counts as gone.
            suspicion: when it is known that something is wrong: the same, and seconds after which a rank that does
                nothing counts as the cause. Otherwise a rank may do whatever it wants for as long as it takes, while
                others wait for it in collectives of the user, which have a timeout of their own.
            inside: whether this rank is in its loop; outside only ranks that are in theirs can be at fault.
        """
        others = [(rank, sign) for rank, sign in self._that_know(number) if rank != self.rank]
        inside_too = [(rank, sign) for rank, sign in others if inside or sign.loops[number].inside]
        ends = [
            (rank, end)
            for rank, sign in others
            for end in sign.loops[number].ends
            if end.iteration == iteration and inside
        ]
        limit = silence if suspicion is None else suspicion
        gone = [rank for rank, sign in inside_too if self.silent[rank] > limit]
        if inside:  # also those that have never told of this loader, or of anything
            gone = [rank for rank, seconds in enumerate(self.silent) if seconds > limit and rank != self.rank]
        idle = [
            rank
            for rank, sign in others
            if suspicion is not None
            and self._idle[rank] > suspicion
            and not sign.waits
            and sign.loops[number].inside
            and sign.loops[number].progress <= (iteration, received)
        ]
        quit_between = [
            (rank, sign) for rank, sign in others if sign.end is not None and sign.loops[number].iteration < iteration
        ]
        return (
            self._ended("failed", ends)
            or self._gone(number, gone)
            or self._ended("quit", ends)
            or (self._quit_between(number, quit_between) if inside else None)
            or self._ended("left", [(rank, end) for rank, end in ends if end.received <= received])
            or self._idling(number, idle, limit)
            or self._followed(ends)
            or self._store_lost(silence)
        )

    def ended_early(self, number: int, iteration: int, received: int) -> Fault | None:
        """Who did not come to the end of an iteration in which this rank received all its batches."""
        early = [
            (rank, end)
            for rank, sign in self._that_know(number)
            for end in sign.loops[number].ends
            if rank != self.rank and end.iteration == iteration and end.received < received
        ]
        return self._ended("failed", early) or self._ended("quit", early) or self._ended("left", early)

    def all_ended(self) -> bool:
        """Whether the programs of all other ranks have ended."""
        return all(
            rank == self.rank or (sign is not None and sign.end is not None) for rank, sign in enumerate(self.signs)
        )

    def _ended(self, kind: str, ends: Sequence[tuple[int, End]]) -> Fault | None:
        chosen = [(rank, end) for rank, end in ends if end.kind == kind]
        if not chosen:
            return None
        rank, end = chosen[0]
        ranks = tuple(rank for rank, _ in chosen)
        others = f" ({ranks_said(ranks)} did so.)" if len(ranks) > 1 else ""
        after = f"after {_batches(end.received)} of epoch {end.epoch}"
        says = {
            "failed": f"rank {rank} failed {after}: {end.text}",
            "quit": f"rank {rank} ended its program {after}" + (f": {end.text}" if end.text else "."),
            "left": f"rank {rank} left its loop {after}, while others ask for more. If its step failed, its own output "
            "says why; a break has to come after the same batch on all ranks.",
        }
        return Fault(kind, ranks, says[kind] + others)

    def _quit_between(self, number: int, chosen: Sequence[tuple[int, Sign]]) -> Fault | None:
        if not chosen:
            return None
        rank, sign = chosen[0]
        loop = sign.loops[number]
        when = f"after {loop.iteration} epochs"
        if loop.ends and loop.ends[-1].iteration == loop.iteration:
            when = f"when it had left its loop after {_batches(loop.received)} of epoch {loop.epoch}"
        why = f": {sign.end}" if sign.end else ". Every rank has to go through the same number of epochs."
        return Fault("quit", tuple(r for r, _ in chosen), f"rank {rank} ended its program {when}{why}")

    def _gone(self, number: int, ranks: Sequence[int]) -> Fault | None:
        if not ranks:
            return None
        seconds = min(self.silent[rank] for rank in ranks)
        text = (
            f"{ranks_said(ranks)} gave no sign of life for {seconds:.1f} s: killed, stopped, or cut off. "
            f"Last known: {self.known(number, ranks[0])}."
        )
        return Fault("silent", tuple(ranks), text)

    def _idling(self, number: int, ranks: Sequence[int], seconds: float) -> Fault | None:
        if not ranks:
            return None
        text = (
            f"{ranks_said(ranks)} did not come to the next batch for {seconds:g} s, while others need it. Last known: "
            f"{self.known(number, ranks[0])}."
        )
        return Fault("idle", tuple(ranks), text)

    def _followed(self, ends: Sequence[tuple[int, End]]) -> Fault | None:
        chosen = [(rank, end) for rank, end in ends if end.kind == "followed"]
        if not chosen:
            return None
        rank, end = next(((rank, end) for rank, end in chosen if end.ranks), chosen[0])
        return Fault("followed", end.ranks, f"{end.text} (as rank {rank} says)")

    def _store_lost(self, silence: float) -> Fault | None:
        holder = self.store_holder
        sign = None if holder is None else self.signs[holder]
        if holder == self.rank or (sign is not None and sign.end == ""):
            return None  # it has done all its work and is gone: nobody watches any more
        if not self.lost and self.since_heard <= silence:
            return None
        what = f"cannot be reached ({self.lost})" if self.lost else f"has not answered for {self.since_heard:.0f} s"
        who = "torchrun's agent" if holder is None else f"the process of rank {holder}"
        return Fault(
            "store",
            () if holder is None else (holder,),
            f"the store of the process group {what}: {who}, which holds it, was killed or stopped, or is cut off.",
        )

    def known(self, number: int, rank: int) -> str:
        """Return where a rank is in a loader, as far as it has told."""
        sign = self.signs[rank]
        loop = LoopSign() if sign is None else sign.loops.get(number, LoopSign())
        if sign is None or loop.iteration == 0:
            return "before its first epoch"
        if not loop.inside:
            return f"out of its loop, after epoch {loop.epoch}"
        doing = {"making": "waiting for its next batch", "step": "in its step"}[loop.phase]
        at = f" at {sign.place}" if sign.place else ""
        return f"{_batches(loop.received)} of epoch {loop.epoch} received, {doing}{at}"

    def table(self, number: int) -> str:
        """What is known of each rank, a line for each."""
        lines = []
        for rank in range(len(self.signs)):
            ago = f"; last sign {self.silent[rank]:.1f} s ago" if self.silent[rank] > 1 else ""
            sign = self.signs[rank]
            ended = "; its program has ended" if sign is not None and sign.end is not None else ""
            lines.append(f"  rank {rank}: {self.known(number, rank)}{ago}{ended}")
        return "\n".join(lines)


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count} batches"
