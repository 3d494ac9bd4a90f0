"""The threads of the watch, one pair per process: one talks to the store, one keeps the time."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from queue import Empty, SimpleQueue

from manyhop import control, world
from manyhop.watch.collectives import Collectives
from manyhop.watch.judge import Fault, Judge
from manyhop.watch.place import place_of
from manyhop.watch.signs import KEPT_ENDS, End, LoopSign, Sign, described, is_of_communication

_RANKS_PER_SECOND = 100  # whose signs a rank reads
_KEPT_LOOPS = 8  # dropped loaders that are still told of, for ranks that lag
_JOIN = 2.0  # seconds for a thread that is in the store
_GRACE = 5.0  # seconds for a connection that breaks to raise before the process is ended
_SILENCE = 60.0  # seconds without a sign of life after which a rank counts as gone, by default
_MISSED = 6  # signs of life in a row; where many processes share a core, a living rank may miss three

_moves = 0


def silence_of(timeout: float) -> float:
    """Seconds without a sign of life after which a rank counts as gone, by the timeout of a loader.

    A minute, unless the user wants it shorter, or has hours for what keeps the interpreter from running other threads.
    """
    return max(min(timeout, _SILENCE), timeout / 10)


def moved() -> None:
    """Note that this process works with a loader, watched or not: it does not count as idle."""
    global _moves
    _moves += 1


class Loop:
    """Where this rank stands in one loader. Written by the loop's thread or a finaliser, read by others: no locks."""

    def __init__(self, number: int, name: str, timeout: float) -> None:
        self.number, self.name, self.silence = number, name, silence_of(timeout)
        self.at: tuple[int, int, int, str] = (0, 0, 0, "out")
        """Iteration, epoch, batches received, phase."""
        self.ends: tuple[End, ...] = ()
        self.done = (0, 0)
        """The last iteration that came to its end, and its batches."""
        self.trouble = False
        """Whether a fault may concern this loop."""
        self.thread = 0
        self.dropped = False

    def leave(self, kind: str, text: str = "", ranks: tuple[int, ...] = ()) -> None:
        iteration, epoch, received, _ = self.at
        self.ends = (*self.ends[1 - KEPT_ENDS :], End(iteration, epoch, received, kind, text, ranks))
        self.at = (iteration, epoch, received, "out")
        moved()

    def drop(self) -> None:
        self.dropped = True

    def sign(self) -> LoopSign:
        return LoopSign(*self.at, self.ends)


class Keeper:
    """Tells the other ranks where this one stands, and listens."""

    def __init__(self) -> None:
        run = world.current()
        self.rank, self.world_size = run.rank, run.world_size
        # torchrun's agent lends its store to the ranks; otherwise rank 0 holds it.
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self._judge = Judge(run.rank, run.world_size, None if agent else 0)
        self._store = control.store().clone()
        self._loops: dict[int, Loop] = {}
        self._made = 0
        self._lock = threading.Lock()  # of the judge; never taken by finalisers
        self._mail: SimpleQueue[None] = SimpleQueue()
        self._interval = float("inf")
        self._tick = 0
        self._unseen = list(range(run.world_size))
        self._place, self._waits = "", False
        self._collectives = Collectives()
        self._ending: str | None = None
        self._quit = False
        self._over = threading.Event()
        self._pid = os.getpid()
        self._threads = [
            threading.Thread(target=target, name=f"manyhop-watch-{target.__name__[1:]}", daemon=True)
            for target in (self._talk, self._guard)
        ]

    @property
    def over(self) -> bool:
        """Whether the watch has ended, with its run."""
        return self._over.is_set()

    def add(self, name: str, timeout: float) -> Loop:
        """Watch one more loader; the first starts the threads."""
        loop = Loop(self._made, name, timeout)
        # Each rank reads the signs of all: of many ranks, each does so less often, so that what the store has to do in
        # a second grows with the number of ranks and not with its square.
        self._interval = min(self._interval, max(min(1.0, timeout / 8), self.world_size / _RANKS_PER_SECOND))
        self._loops = {**self._kept(), self._made: loop}
        self._made += 1
        if self._made == 1:
            self._store.set(f"watch/{self.rank}", self._sign().encode())  # whoever dies now has been there
            for thread in self._threads:
                thread.start()
        return loop

    def wake(self) -> None:
        """Have the news told at once. May be called from finalisers."""
        self._mail.put(None)

    def fault_now(self, loop: Loop) -> Fault | None:
        """What keeps a loop from its next batch. Where somebody just left, waits some seconds for a deeper reason."""
        fault = self._fault(loop, loop.at[2])
        if fault is None or not fault.has_deeper_reason:
            return fault
        return self.deeper_fault(loop, loop.at[2]) or fault

    def deeper_fault(self, loop: Loop, received: float) -> Fault | None:
        """The fault that may be behind others: somebody who failed, or of whom nothing is heard any more."""
        end = time.monotonic() + self._suspicion + 2.5 * self._interval
        while True:
            fault = self._fault(loop, received, self._suspicion)
            if (fault is not None and not fault.has_deeper_reason) or time.monotonic() > end or self._judge.lost:
                return fault
            time.sleep(self._interval / 4)

    def known(self, loop: Loop, rank: int) -> str:
        """Return where a rank is in a loader, as far as it has told."""
        with self._lock:
            return self._judge.known(loop.number, rank)

    @property
    def _suspicion(self) -> float:
        """Seconds without a sign of life after which a rank is suspected, when something is wrong anyway."""
        return max(1.0, _MISSED * self._interval)

    def _silence(self, loop: Loop) -> float:
        """Seconds without a sign of life after which a rank counts as gone for a loop."""
        return max(loop.silence, self._suspicion)

    def _fault(self, loop: Loop, received: float, suspicion: float | None = None) -> Fault | None:
        iteration, _, _, phase = loop.at
        inside = phase != "out" or self._over.is_set()  # an iteration that the program's end cut off counts
        with self._lock:
            fault = None
            if loop.done[0] == iteration - 1 > 0:
                fault = self._judge.ended_early(loop.number, *loop.done)
            return fault or self._judge.fault(
                loop.number, iteration, received, self._silence(loop), suspicion=suspicion, inside=inside
            )

    # -- the thread that talks

    def _talk(self) -> None:
        self._store.set_timeout(timedelta(seconds=30))
        last = time.monotonic()
        try:
            while True:
                with contextlib.suppress(Empty):
                    self._mail.get(timeout=self._interval)
                    while True:
                        self._mail.get_nowait()
                quit = self._quit
                now = time.monotonic()
                self._exchange(min(now - last, 2 * self._interval))  # a process that was stopped does not count it
                last = now
                if quit:
                    return
                time.sleep(0.01)  # whoever begins and leaves loops in a row does not keep the store busy
        except RuntimeError as error:  # the store is gone
            with self._lock:
                self._judge.lost = f"{error}".splitlines()[0]
            for loop in self._loops.values():
                loop.trouble = True

    def _exchange(self, seconds: float) -> None:
        self._tick += 1
        self._store.set(f"watch/{self.rank}", self._sign().encode())
        if self._unseen:
            missing = control.absent(self._store, [f"watch/{rank}" for rank in self._unseen])
            self._unseen = [self._unseen[k] for k in missing]
        heard = sorted(set(range(self.world_size)).difference(self._unseen))
        texts = self._store.multi_get([f"watch/{rank}" for rank in heard])
        signs: list[Sign | None] = [None] * self.world_size
        for rank, text in zip(heard, texts, strict=True):
            signs[rank] = Sign.decode(text)
        with self._lock:
            self._judge.hear(signs, seconds)
        for loop in self._loops.values():
            loop.trouble = self._fault(loop, float("inf")) is not None

    def _sign(self) -> Sign:
        loops = {number: loop.sign() for number, loop in self._loops.items()}
        return Sign(self._tick, _moves, self._waits, self._place, self._ending, loops)

    def _kept(self) -> dict[int, Loop]:
        dropped = [number for number, loop in self._loops.items() if loop.dropped]
        return {number: loop for number, loop in self._loops.items() if number not in dropped[:-_KEPT_LOOPS]}

    # -- the thread that keeps the time

    def _guard(self) -> None:
        last, moves, idle = time.monotonic(), _moves, 0.0
        while not self._over.wait(self._interval):
            now = time.monotonic()
            seconds = min(now - last, 2 * self._interval)
            last = now
            with self._lock:
                self._judge.since_heard += seconds
                store_silent = self._judge.since_heard
            idle = idle + seconds if moves == _moves else 0.0
            moves = _moves
            latest = max(self._loops.values(), key=lambda loop: (loop.at[3] != "out", loop.number))
            self._place, self._waits = "", False
            if idle > self._interval:
                self._place, self._waits = place_of(latest.thread, self._collectives.stuck())
            for loop in self._loops.values():
                silence = self._silence(loop)
                loop.trouble = loop.trouble or store_silent > silence
                if idle > silence + min(_GRACE, silence / 2) and not self._over.is_set():
                    self._end_if_hopeless(loop)

    def _end_if_hopeless(self, loop: Loop) -> None:
        """End the process if this rank waits for one that is gone: nothing can interrupt a collective."""
        phase = loop.at[3]
        asks = self._waits or phase == "making"
        if phase == "out" and not self._waits:
            return
        # This rank may be about to leave after the same batch as one that has left, unless it waits or asks for more.
        received = float("inf") if phase == "out" else loop.at[2] - (not asks)
        fault = self._fault(loop, received)
        if fault is None:
            return
        if phase != "out":
            loop.leave("followed", fault.text, fault.ranks)
        self._ending = f"ended by its watch: {fault.text}"
        self.wake()
        doing = f" (it is at {self._place})" if self._place else ""
        with self._lock:
            table = self._judge.table(loop.number)
        message = (
            f"manyhop: rank {self.rank} cannot go on{doing} and ends its process, as waiting in a collective cannot be "
            f"interrupted. {loop.name}: {fault.text}\nLast known of all ranks:\n{table}\n"
        )
        time.sleep(2.5 * self._interval)  # the others hear of it, also where the store lies in this process
        _end_process(message)

    # -- the end

    def announce(self) -> None:
        """The run ends on this rank: tell the others why, before what may have to wait for them."""
        if os.getpid() != self._pid or self._ending is not None:
            return
        error = _last_error()
        inside = [loop for loop in self._loops.values() if loop.at[3] != "out"]
        for loop in self._loops.values():
            _give_reason(loop, error, loop in inside)
        reason = "" if error is None else described(error)
        self._ending = reason or ("in the middle of its loop" if inside else "")
        self.wake()

    def stop(self) -> None:
        """The run has ended on this rank: end the threads."""
        if os.getpid() != self._pid or self._over.is_set():
            return
        self._over.set()
        self.announce()
        error = _last_error()
        if error is not None and is_of_communication(error):
            self._explain(error)
        if self._judge.store_holder == self.rank:
            self._await_others()
        self._quit = True
        self.wake()
        for thread in self._threads:
            thread.join(_JOIN)

    def _explain(self, error: BaseException) -> None:
        """Say whose fault the error of a collective may be, which itself names at best an address."""
        for loop in self._loops.values():
            if loop.ends and loop.ends[-1].iteration == loop.at[0] and loop.ends[-1].text == described(error):
                fault = self.deeper_fault(loop, float("inf"))
                if fault is not None and fault.ranks not in ((), (self.rank,)):
                    text = f"manyhop: on rank {self.rank} a collective failed. The cause is probably this: {fault.text}"
                    print(text, file=sys.stderr, flush=True)

    def _await_others(self) -> None:
        """Keep the store, which may lie in this process, until the others have heard how it ended."""
        end = time.monotonic() + 2.5 * self._interval
        while time.monotonic() < end and not self._judge.lost and not self._judge.all_ended():
            time.sleep(0.02)


def _last_error() -> BaseException | None:
    """What ends the program, if an error does."""
    return getattr(sys, "last_exc", getattr(sys, "last_value", None))


def _give_reason(loop: Loop, error: BaseException | None, inside: bool) -> None:
    """Note in an iteration that the program's end has cut off why that was; one that was just dropped is such, too."""
    kind = "followed" if error is not None and is_of_communication(error) else "quit"
    text = "" if error is None else described(error)
    if inside:
        loop.leave(kind, text)
    elif error is not None and loop.ends and loop.ends[-1].kind == "left" and loop.ends[-1].iteration == loop.at[0]:
        loop.ends = (*loop.ends[:-1], replace(loop.ends[-1], kind=kind, text=text))


def _end_process(message: str) -> None:
    """The last resort. Neither a lock of a stream that another thread holds nor an error may keep it from ending."""

    def say() -> None:
        sys.stdout.flush()
        sys.stderr.write(message)
        sys.stderr.flush()

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    thread.join(1.0)
    if thread.is_alive():
        os.write(2, message.encode())
    os._exit(1)


_keeper: Keeper | None = None


def of_run() -> Keeper:
    """The keeper of this run; it ends with the run."""
    global _keeper
    if _keeper is None or _keeper.over:
        _keeper = Keeper()
        world.at_shutdown(_keeper.stop)
    return _keeper


def announce_end() -> None:
    """Tell the other ranks that this one's run ends, and why, if there is a watch."""
    if _keeper is not None:
        _keeper.announce()
