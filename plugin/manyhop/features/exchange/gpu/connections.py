"""Communicators of GPUs over NCCL (or gloo without a GPU), which the exchanges of a process share."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import torch

from manyhop.errors import RankError
from manyhop.features.exchange.peers import Peers
from manyhop.features.exchange.row_exchange import ExchangeLostError
from manyhop.ranks import control, world

_BROKEN = "nobody: broken"
_LONGEST_END = 60.0  # seconds that the end of a run waits for other ranks, which the watch also notifies
_LAST_KERNELS = 2.0  # seconds for the last kernels once all ranks are ending


class Connections:
    """The communicators with the other ranks. All ranks assign each to one exchange at a time.

    Rank 0 chooses one that its own exchanges have returned, and the others read the choice from the store. Another rank
    first waits for its former exchange. That exchange needs no further calls of other ranks: each exchange returns its
    communicator after the same number of calls on all ranks.
    """

    def __init__(self, device: torch.device, timeout: float) -> None:
        self._device, self._timeout = device, timeout
        self._store = control.side_store()  # threads may wait in the main store for a long time
        self._condition = threading.Condition()
        self._made: list[Peers] = []
        self._users: list[str] = []
        """The exchange that has each communicator, present or future; empty: none."""
        self._latest: list[str] = []
        """The latest exchange of each."""
        self._debts: dict[str, Callable[[Peers], None]] = {}
        """Callbacks of exchanges that did not wait for their turn."""

    def take(self, key: str) -> Peers:
        """Return a communicator for an exchange, which later calls :meth:`give_back`. All ranks call it.

        The ``key`` is equal on all ranks, and different each time. RankError: rank 0 is late; the former exchange does
        not end on this rank, or has broken.
        """
        number, before = self._choose(key) if world.current_rank() == 0 else self._hear(key)
        with self._condition:
            self._wait_until_free(number, before)
            if self._users[number] == _BROKEN:
                raise RankError("Expected connections between the GPUs, got some that an exchange has broken off.")
            self._users[number] = self._latest[number] = key
            if not self._condition.wait_for(lambda: len(self._made) >= number, self._timeout):
                raise RankError(f"Expected connections between the GPUs within {self._timeout:g} s.")
            if number < len(self._made):
                return self._made[number]
        # One after the other, in the same order on all ranks. On a GPU, the exchange loses patience before NCCL does.
        peers = Peers(self._device, self._timeout * (1 if self._device.type == "cpu" else 10))
        with self._condition:
            self._made.append(peers)
            self._condition.notify_all()
        return peers

    def take_at_once(self, key: str, settle: Callable[[Peers], None]) -> Peers | None:
        """Return a communicator as :meth:`take`, or ``None`` if that may have to wait for other ranks.

        After ``None``, the next user of this communicator on this rank first calls ``settle`` with it, or the exchange
        itself calls :meth:`take` after :meth:`forgive`.
        """
        with self._condition:
            if world.current_rank() == 0:
                there = "" in self._users[: len(self._made)]
            else:
                there = self._store.check([key])
                if there:
                    number, before = self._hear(key)
                    there = number < len(self._made) and not self._users[number] and self._latest[number] == before
            if there:
                return self.take(key)
            self._debts[key] = settle
            return None

    def forgive(self, key: str) -> bool:
        """Cancel ``settle`` of an exchange; return whether it was not called yet."""
        with self._condition:
            return self._debts.pop(key, None) is not None

    def give_back(self, peers: Peers, *, broken: bool = False) -> None:
        """Let other exchanges have a communicator; or discard a broken one."""
        with self._condition:
            if peers in self._made:
                self._users[self._made.index(peers)] = _BROKEN if broken else ""
                self._condition.notify_all()

    def close(self) -> None:
        """Close all at the end of the run.

        Wait for announcements to ranks that are still in a step. If a rank has ended, or has broken its communicator,
        abort the communicator: the end of the process group, which closes NCCL's communicators with all ranks, would
        otherwise wait forever.
        """
        with self._condition:
            made, self._made = self._made, []
            broken = [user == _BROKEN for user in self._users]
        others = self._others_at_their_ends()
        for peers, is_broken in zip(made, broken, strict=False):
            if not is_broken and not _is_idle(peers, others, min(self._timeout, _LONGEST_END)):
                peers.abort()
            elif self._device.type == "cpu" and not is_broken:
                peers.close()

    def _others_at_their_ends(self) -> Callable[[], bool]:
        """Publish that this rank closes its communicators; return a test whether all others do, or have ended."""
        rank, key = world.current_rank(), f"connections {self._timeout:g}/closed"
        missing = [f"{key}/{other}" for other in range(world.current_size()) if other != rank]

        def all_closed() -> bool:
            try:
                missing[:] = [missing[k] for k in control.absent(self._store, missing)]
            except RuntimeError:  # the process that holds the store has ended
                missing.clear()
            return not missing

        with contextlib.suppress(RuntimeError):
            self._store.set(f"{key}/{rank}", "")
        return all_closed

    def _choose(self, key: str) -> tuple[int, str]:
        """Choose a communicator, on rank 0, and publish it with its former user."""
        with self._condition:
            number = self._users.index("") if "" in self._users else len(self._users)
            before = self._latest[number] if number < len(self._users) else ""
            self._users[number : number + 1] = [""]
            self._latest[number : number + 1] = [before]
            self._users[number] = key
        self._store.set(key, f"{number} {before}")
        return number, before

    def _hear(self, key: str) -> tuple[int, str]:
        """Return the choice that rank 0 has published."""
        if not control.appears(self._store, key, world.current_size(), self._timeout):
            raise ExchangeLostError(f"Rank 0 did not join an exchange within {self._timeout:g} s.", ranks=(0,))
        number, _, before = self._store.get(key).decode().partition(" ")
        return int(number), before

    def _wait_until_free(self, number: int, before: str) -> None:
        """Wait until this rank is through with the exchange ``before``, which may have left without its turn."""
        settle = self._debts.pop(before, None)
        if settle is not None:
            self._wait_until_free(*self._hear(before))
            self._latest[number] = before
            settle(self._made[number])
        if not self._condition.wait_for(lambda: self._is_free(number, before), self._timeout):
            raise RankError(
                f"Expected an epoch to end on this rank within {self._timeout:g} s, like on rank 0, got an open "
                "iterator. Leave loops on all ranks after the same batch."
            )

    def _is_free(self, number: int, before: str) -> bool:
        """Return whether this rank is through with the exchange that had a communicator before, or never will be."""
        if world.current_rank() == 0:
            return True
        while len(self._users) <= number:
            self._users.append("")
            self._latest.append("")
        return self._users[number] == _BROKEN or (not self._users[number] and self._latest[number] == before)


def _is_idle(peers: Peers, others_ended: Callable[[], bool], timeout: float) -> bool:
    """Wait until no work is under way, for less time if all others have ended; return success."""
    now = time.monotonic()
    end = now + timeout
    while not peers.is_idle() and now < end:
        if others_ended():
            end = min(end, now + _LAST_KERNELS)
        time.sleep(0.02)
        now = time.monotonic()
    return peers.is_idle()


def connections(device: torch.device, timeout: float) -> Connections:
    """Return the communicators of this run that all exchanges with such a timeout share."""
    key = world.token(), device, timeout
    with _lock:
        if key not in _all:
            found = _all[key] = Connections(device, timeout)
            world.at_shutdown(lambda: _forget(key, found))
        return _all[key]


def _forget(key: tuple[str, torch.device, float], ended: Connections) -> None:
    ended.close()
    with _lock:
        _all.pop(key, None)


_all: dict[tuple[str, torch.device, float], Connections] = {}
_lock = threading.Lock()
