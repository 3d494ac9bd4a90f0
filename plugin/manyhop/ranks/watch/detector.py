"""Fault detection from the heartbeats of all ranks, without threads, clocks and stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from manyhop.ranks.control import rank_names
from manyhop.ranks.watch.heartbeat import End, Heartbeat, LoopStatus
from manyhop.system.units import counted


@dataclass(frozen=True)
class Fault:
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

    Args:
        rank: this rank.
        world_size: number of ranks.
        store_holder: the rank whose process holds the store; ``None``: torchrun's agent.
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

    def _in_loader(self, number: int) -> list[tuple[int, Heartbeat]]:
        return [(rank, beat) for rank, beat in enumerate(self.heartbeats) if beat is not None and number in beat.loops]

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
        others = [(rank, beat) for rank, beat in self._in_loader(number) if rank != self.rank]
        inside_too = [(rank, beat) for rank, beat in others if inside or beat.loops[number].inside]
        ends = [
            (rank, end)
            for rank, beat in others
            for end in beat.loops[number].ends
            if end.iteration == iteration and inside
        ]
        limit = silence if suspicion is None else suspicion
        gone = [rank for rank, beat in inside_too if self.silent[rank] > limit]
        if inside:  # also ranks that have never reported this loader
            gone = [rank for rank, seconds in enumerate(self.silent) if seconds > limit and rank != self.rank]
        idle = [
            rank
            for rank, beat in others
            if suspicion is not None
            and self._idle[rank] > suspicion
            and not beat.waits
            and beat.loops[number].inside
            and beat.loops[number].progress <= (iteration, received)
        ]
        between = [
            (rank, beat) for rank, beat in others if beat.end is not None and beat.loops[number].iteration < iteration
        ]
        quit_between = [(rank, beat) for rank, beat in between if beat.followed is None]
        followed = [
            (rank, End(iteration, 0, 0, "followed", beat.end or "", beat.followed))
            for rank, beat in between
            if beat.followed is not None and inside
        ]
        return (
            self._ended("failed", ends)
            or self._silent(number, gone)
            or self._ended("quit", ends)
            or (self._quit_between(number, quit_between) if inside else None)
            or self._ended("left", [(rank, end) for rank, end in ends if end.received <= received])
            or self._idling(number, idle, limit)
            or self._followed(ends + followed)
            or self._store_lost(silence)
        )

    def ended_early(self, number: int, iteration: int, received: int) -> Fault | None:
        """Return the fault of ranks that left an iteration early, if this rank has received all of its batches."""
        early = [
            (rank, end)
            for rank, beat in self._in_loader(number)
            for end in beat.loops[number].ends
            if rank != self.rank and end.iteration == iteration and end.received < received
        ]
        return self._ended("failed", early) or self._ended("quit", early) or self._ended("left", early)

    def failed(self, number: int, iteration: int) -> Fault | None:
        """Return the fault of ranks that had their own error in an iteration."""
        ends = [
            (rank, end)
            for rank, beat in self._in_loader(number)
            for end in beat.loops[number].ends
            if rank != self.rank and end.iteration == iteration and end.text
        ]
        return self._ended("failed", ends) or self._ended("quit", ends)

    def all_ended(self) -> bool:
        """Return whether the programs of all other ranks have ended."""
        return all(
            rank == self.rank or (beat is not None and beat.end is not None)
            for rank, beat in enumerate(self.heartbeats)
        )

    def _ended(self, kind: str, ends: Sequence[tuple[int, End]]) -> Fault | None:
        chosen = [(rank, end) for rank, end in ends if end.kind == kind]
        if not chosen:
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
        return Fault(kind, ranks, texts[kind] + others)

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
