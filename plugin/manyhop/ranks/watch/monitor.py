"""The two threads of the watch in a process: one exchanges heartbeats through the store, one is the watchdog."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType

from manyhop.ranks import control, world
from manyhop.ranks.watch.detector import (
    End,
    Fault,
    FaultDetector,
    Heartbeat,
    LoopStatus,
    described,
    is_of_communication,
    reason,
)

_RANKS_PER_SECOND = 100  # heartbeats that a rank reads per second
_KEPT_ENDS = 4  # ends of former iterations in a heartbeat, for slower ranks
_KEPT_LOOPS = 8  # dropped loaders that are still reported, for slower ranks
_JOIN = 2.0  # seconds for a thread that is in the store
_GRACE = 5.0  # seconds in which a broken connection may raise an error before the process is ended
_SILENCE = 60.0  # seconds without a heartbeat after which a rank is lost, by default
_MISSED = 6  # consecutive heartbeats; if many processes share a core, a living rank may miss three
_PATIENCE = 0.5  # seconds; torch needs up to 0.1 to notice the end of a collective
# Modules in which a thread waits in a collective: torch.distributed, DDP, and the backward pass, at whose end DDP waits
# for the gradients of other ranks.
_WAITING = ("torch.distributed", "torch.nn.parallel.distributed", "torch.autograd.graph")
_NOT_THE_USERS = ("torch", "threading")


class _Activity:
    """Counts the actions of this process on any loader, watched or not: it is not idle."""

    count = 0


activity = _Activity()


def silence_of(timeout: float) -> float:
    """Return the seconds without a heartbeat after which a rank is lost, by the timeout of a loader.

    A minute for usual timeouts. Long ones allow for calls that block all threads of the interpreter.
    """
    return max(min(timeout, _SILENCE), timeout / 10)


class Loop:
    """Position of this rank in one loader. The loop's thread or a finaliser writes it without locks."""

    def __init__(self, number: int, name: str, timeout: float) -> None:
        self.number, self.name, self.silence, self.timeout = number, name, silence_of(timeout), timeout
        self.status = LoopStatus()
        self.done = (0, 0)
        """The last complete iteration, and its batches."""
        self.trouble = False
        """Whether a fault may concern this loop."""
        self.thread = 0
        self.dropped = False
        self.rows_under_way: Callable[[], Callable[[], bool] | None] = lambda: None
        """A weak reference to the method that returns whether rows of a returned batch are still being received."""

    def leave(self, kind: str, text: str = "", ranks: tuple[int, ...] = ()) -> None:
        iteration, epoch, received, _, ends = self.status
        end = End(iteration, epoch, received, kind, text, ranks)
        self.status = LoopStatus(iteration, epoch, received, "out", (*ends[1 - _KEPT_ENDS :], end))
        activity.count += 1

    def drop(self) -> None:
        self.dropped = True

    @property
    def last_end(self) -> End | None:
        """The end of the last iteration, if it ended before its last batch."""
        iteration, *_, ends = self.status
        return ends[-1] if ends and ends[-1].iteration == iteration else None


class Monitor:
    """Publishes the heartbeats of this rank and reads those of the others."""

    def __init__(self) -> None:
        run = world.current()
        self.rank, self.world_size = run.rank, run.world_size
        # The ranks may use the store of torchrun's agent; otherwise rank 0 holds it.
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self._detector = FaultDetector(run.rank, run.world_size, None if agent else 0)
        self._store = control.store().clone()
        self._loops: dict[int, Loop] = {}
        self._made = 0
        self._lock = threading.Lock()  # of the detector; never taken by finalisers
        self._mail: SimpleQueue[None] = SimpleQueue()
        self._interval = float("inf")
        self._tick = 0
        self._unseen = list(range(run.world_size))
        self._place, self._waits = "", False
        self._collectives = Collectives()
        self._ending: str | None = None
        self._followed: tuple[int, ...] | None = None
        self._quit = False
        self._over = threading.Event()
        self._pid = os.getpid()
        self._threads = [
            threading.Thread(target=target, name=f"manyhop-watch-{target.__name__[1:]}", daemon=True)
            for target in (self._talk, self._guard)
        ]

    @property
    def over(self) -> bool:
        """Whether the run, and with it the watch, has ended."""
        return self._over.is_set()

    def add(self, name: str, timeout: float) -> Loop:
        """Watch a loader; the first one starts the threads."""
        loop = Loop(self._made, name, timeout)
        # Each rank reads the heartbeats of all ranks: the more ranks, the less often, so that the load of the store
        # grows linearly.
        self._interval = min(self._interval, max(min(1.0, timeout / 8), self.world_size / _RANKS_PER_SECOND))
        self._loops = {**self._kept(), self._made: loop}
        self._made += 1
        if self._made == 1:
            self._store.set(f"watch/{self.rank}", self._heartbeat().encode())  # before anything can fail
            for thread in self._threads:
                thread.start()
        return loop

    def wake(self) -> None:
        """Publish the next heartbeat at once. May be called from finalisers."""
        self._mail.put(None)

    def deeper_fault(self, loop: Loop, received: float) -> Fault | None:
        """Return the fault that may have caused others: a failed or silent rank. Waits for it for some seconds."""
        end = time.monotonic() + self.suspicion + 2.5 * self._interval
        while True:
            fault = self.fault(loop, received, self.suspicion)
            if (fault is not None and not fault.has_deeper_reason) or time.monotonic() > end or self._detector.lost:
                return fault
            time.sleep(self._interval / 4)

    def known(self, loop: Loop, rank: int) -> str:
        """Return the position of a rank in a loader, by its latest heartbeat."""
        with self._lock:
            return self._detector.known(loop.number, rank)

    @property
    def suspicion(self) -> float:
        """Seconds without a heartbeat after which a rank is suspected, if something is known to be wrong."""
        return max(1.0, _MISSED * self._interval)

    def _silence(self, loop: Loop) -> float:
        """Return the seconds without a heartbeat after which a rank is lost for a loop."""
        return max(loop.silence, self.suspicion)

    def fault(self, loop: Loop, received: float, suspicion: float | None = None) -> Fault | None:
        """Return the known fault for which a loop cannot get its next batch; ``suspicion``: something is wrong."""
        iteration, *_, phase, _ = loop.status
        inside = phase != "out" or self._over.is_set()  # the program's end may have cut off an iteration
        with self._lock:
            fault = None
            if loop.done[0] == iteration - 1 > 0:
                fault = self._detector.ended_early(loop.number, *loop.done)
            return fault or self._detector.fault(
                loop.number, iteration, received, self._silence(loop), suspicion=suspicion, inside=inside
            )

    # The thread of heartbeats

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
                self._exchange(min(now - last, 2 * self._interval))  # less if this process was stopped
                last = now
                if quit:
                    return
                time.sleep(0.01)  # many short loops must not keep the store busy
        except RuntimeError as error:  # the store has ended
            with self._lock:
                self._detector.lost = f"{error}".splitlines()[0]
            for loop in self._loops.values():
                loop.trouble = True

    def _exchange(self, seconds: float) -> None:
        self._tick += 1
        self._store.set(f"watch/{self.rank}", self._heartbeat().encode())
        if self._unseen:
            missing = control.absent(self._store, [f"watch/{rank}" for rank in self._unseen])
            self._unseen = [self._unseen[k] for k in missing]
        reachable = sorted(set(range(self.world_size)).difference(self._unseen))
        texts = self._store.multi_get([f"watch/{rank}" for rank in reachable])
        heartbeats: list[Heartbeat | None] = [None] * self.world_size
        for rank, text in zip(reachable, texts, strict=True):
            heartbeats[rank] = Heartbeat.decode(text)
        with self._lock:
            self._detector.update(heartbeats, seconds)
        for loop in self._loops.values():
            loop.trouble = self.fault(loop, float("inf")) is not None

    def _heartbeat(self) -> Heartbeat:
        loops = {number: loop.status for number, loop in self._loops.items()}
        return Heartbeat(self._tick, activity.count, self._waits, self._place, self._ending, self._followed, loops)

    def _kept(self) -> dict[int, Loop]:
        dropped = [number for number, loop in self._loops.items() if loop.dropped]
        return {number: loop for number, loop in self._loops.items() if number not in dropped[:-_KEPT_LOOPS]}

    # The watchdog

    def _guard(self) -> None:
        last, moves, idle = time.monotonic(), activity.count, 0.0
        while not self._over.wait(self._interval):
            now = time.monotonic()
            seconds = min(now - last, 2 * self._interval)
            last = now
            with self._lock:
                self._detector.store_silence += seconds
                store_silent = self._detector.store_silence
            idle = idle + seconds if moves == activity.count else 0.0
            moves = activity.count
            latest = max(self._loops.values(), key=lambda loop: (loop.status.inside, loop.number))
            self._place, self._waits = "", False
            if idle > self._interval:
                self._place, self._waits = place_of(latest.thread, self._collectives.stuck())
            for loop in self._loops.values():
                silence = self._silence(loop)
                loop.trouble = loop.trouble or store_silent > silence
                if idle > silence + min(_GRACE, silence / 2) and not self._over.is_set():
                    lacks_rows = loop.rows_under_way() if idle > loop.timeout else None
                    late = lacks_rows is not None and lacks_rows()
                    del lacks_rows  # it refers to the exchange
                    self._end_if_hopeless(loop, loop.timeout if late else None)

    def _end_if_hopeless(self, loop: Loop, suspicion: float | None) -> None:
        """End the process if this rank waits for a lost one: nothing can interrupt a collective.

        With ``suspicion``, its GPU waits for rows, and ranks that were idle for that many seconds are lost.
        """
        *_, received, phase, _ = loop.status
        needs_batch = self._waits or phase == "making"
        if phase == "out" and not self._waits:
            return
        # Unless it waits or requests a batch, this rank may be about to leave after the same batch as a rank that left.
        least = float("inf") if phase == "out" else received - (not needs_batch)
        fault = self.fault(loop, least, suspicion)
        if fault is None:
            return
        if phase != "out":
            loop.leave("followed", fault.text, fault.ranks)
        self._ending, self._followed = f"ended by its watch: {fault.text}", fault.ranks
        self.wake()
        doing = f" (it is at {self._place})" if self._place else ""
        with self._lock:
            table = self._detector.table(loop.number)
        message = (
            f"Last known of all ranks:\n{table}\nmanyhop ERROR: rank {self.rank} cannot go on{doing} and ends its "
            f"process, as waiting in a collective cannot be interrupted. {loop.name}: {fault.text}\n"
        )
        time.sleep(2.5 * self._interval)  # others read it, even if this process holds the store
        _end_process(message)

    # The end

    def announce(self) -> None:
        """Publish the reason for which the run ends on this rank, before anything waits for other ranks."""
        if os.getpid() != self._pid or self._ending is not None:
            return
        error = _last_error()
        kind, text, ranks = ("quit", "", ()) if error is None else reason(error, "quit")
        inside = [loop for loop in self._loops.values() if loop.status.inside]
        for loop in self._loops.values():
            last = loop.last_end
            if loop in inside:
                loop.leave(kind, text, ranks)
            elif error is not None and last is not None and last.kind == "left":  # dropped just now, by the error
                ends = (*loop.status.ends[:-1], last._replace(kind=kind, text=text, ranks=ranks))
                loop.status = loop.status._replace(ends=ends)
        self._followed = ranks if kind == "followed" else None
        self._ending = text or ("in the middle of its loop" if inside else "")
        self.wake()

    def stop(self) -> None:
        """End the threads, after the run on this rank."""
        if os.getpid() != self._pid or self._over.is_set():
            return
        self._over.set()
        self.announce()
        error = _last_error()
        if error is not None and is_of_communication(error):
            self._explain(error)
        if self._detector.store_holder == self.rank:
            self._await_others()
        self._quit = True
        self.wake()
        for thread in self._threads:
            thread.join(_JOIN)
        if error is None:
            self._name_failed()

    def _name_failed(self) -> None:
        """Print the rank that failed, by its last heartbeat, as this rank may have caught the error that followed."""
        for loop in self._loops.values():
            fault, last = self._detector.failed(loop.number, loop.status.iteration), loop.last_end
            if fault is not None and last is not None and last.kind in ("left", "quit"):
                text = f"manyhop ERROR: rank {self.rank} did not finish its loop. {loop.name}: {fault.text}"
                print(text, file=sys.stderr, flush=True)

    def _explain(self, error: BaseException) -> None:
        """Print the rank that may have caused the error of a collective, which names an address at best."""
        for loop in self._loops.values():
            last = loop.last_end
            if last is not None and last.text == described(error):
                fault = self.deeper_fault(loop, float("inf"))
                if fault is not None and fault.ranks not in ((), (self.rank,)):
                    text = f"a collective failed on rank {self.rank}. The cause is probably this: {fault.text}"
                    print("manyhop ERROR:", text, file=sys.stderr, flush=True)

    def _await_others(self) -> None:
        """Wait until the other ranks have read the reason of the end: this process may hold the store."""
        end = time.monotonic() + 2.5 * self._interval
        while time.monotonic() < end and not self._detector.lost and not self._detector.all_ended():
            time.sleep(0.02)


def _last_error() -> BaseException | None:
    return getattr(sys, "last_exc", getattr(sys, "last_value", None))


def _end_process(message: str) -> None:
    """End the process, even if a thread holds the lock of a stream, or printing fails."""

    def report() -> None:
        sys.stdout.flush()
        sys.stderr.write(message)
        sys.stderr.flush()

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    thread.join(1.0)
    if thread.is_alive():
        os.write(2, message.encode())
    os._exit(1)


_monitor: Monitor | None = None


def of_run() -> Monitor:
    """Return the monitor of this run; it ends with the run."""
    global _monitor
    if _monitor is None or _monitor.over:
        _monitor = Monitor()
        world.at_shutdown(_monitor.stop)
    return _monitor


def announce_end() -> None:
    """Publish that the run of this rank ends, and why, if there is a watch."""
    if _monitor is not None:
        _monitor.announce()


def place_of(thread: int, gpu_waits: bool) -> tuple[str, bool]:
    """Return ``file:line in function`` of a thread's innermost frame of the user, and whether it waits for other ranks.

    ``gpu_waits``: whether a collective on the GPU waits.
    """
    frame: FrameType | None = sys._current_frames().get(thread)
    waits = gpu_waits
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        waits = waits or module.startswith(_WAITING)
        package = module.split(".")[0]
        if package not in _NOT_THE_USERS and not package.startswith("manyhop"):  # the engine or an adapter
            code = frame.f_code
            call = " (in a collective)" if waits else ""
            return f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}{call}", waits
        frame = frame.f_back
    return "", waits


class Collectives:
    """The collectives of NCCL in all process groups of this process."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], float] = {}

    def stuck(self) -> bool:
        """Return whether a collective that an earlier call, half a second ago or more, has seen is still unfinished."""
        now, before = time.monotonic(), self._since
        self._since = {waiting: before.get(waiting, now) for waiting in _unfinished().items()}
        return any(now - since >= _PATIENCE for since in self._since.values())


def _unfinished() -> dict[str, int]:
    """Return the groups with unfinished collectives, and the number of the last finished one of each.

    torch's flight recorder counts them, unless TORCH_FR_BUFFER_SIZE is 0. Reading more than counts would not be safe.
    """
    import torch._C._distributed_c10d as c10d

    dump = getattr(c10d, "_dump_nccl_trace_json", None)  # missing if torch has no NCCL
    found: dict[str, int] = {}
    if dump is not None:
        with contextlib.suppress(RuntimeError, ValueError, KeyError):  # an unreadable record proves nothing
            for group, counts in json.loads(dump(includeCollectives=False)).get("pg_status", {}).items():
                ended = int(counts["last_completed_collective"])
                if int(counts["last_enqueued_collective"]) > ended:
                    found[group] = ended
    return found
