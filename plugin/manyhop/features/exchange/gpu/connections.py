"""Communicators of GPUs over NCCL (or gloo without a GPU), which the exchanges of a process share in turns."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from manyhop.errors import RankError
from manyhop.features.exchange.headers import ExchangeLostError
from manyhop.ranks import control, world

_BYTES = 0  # ncclInt8


class Peers:
    """A communicator with the other ranks. All ranks create it, and call it in lockstep, one exchange at a time.

    The communicator is torch's. Once it is connected, NCCL is called directly: the overhead of ``torch.distributed``
    takes the host several times as long as the call.

    Args:
        device: device of this rank.
        timeout: seconds to wait for other ranks.

    Attributes:
        is_connected: whether ranks have exchanged something.
        latest: what was announced last to the other ranks, which may be in flight.
        done: event after the latest exchange; ``None`` without a GPU.
    """

    def __init__(self, device: torch.device, timeout: float) -> None:
        self.is_connected = False
        self.latest: Any = None
        self.done: Any = None
        self._device, self._on_gpu = device, device.type == "cuda"
        self._group: Any = _new_group(device, timeout)
        self._backend = self._group._get_backend(device)
        self._nccl = _nccl() if self._on_gpu and hasattr(self._backend, "_comm_ptr") else None
        self._side: Any = None
        if self._on_gpu:  # prioritized over the kernels that gather the next part
            self._side = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.done = self._side.record_event()

    def swap(self, received: Tensor, sent: Tensor, expected: list[int], sizes: list[int], *, wait: bool = True) -> Any:
        """Enqueue an exchange of parts of two tensors on the current stream.

        Args:
            received: ``[...]``, output: data from each rank.
            sent: ``[...]``: data to each rank.
            expected: ``[ranks]``: entries from each rank; 0 from this one.
            sizes: ``[ranks]``: entries to each rank; 0 to this one.
            wait: without a GPU, wait for the exchange.

        Returns:
            Without a GPU, and with ``wait=False``, the work to wait for; else ``None``.

        Raises:
            RuntimeError: a rank is gone, or late.
        """
        if self._on_gpu:
            stream = torch._C._cuda_getCurrentRawStream(self._device.index)
            if not self._call_nccl(received, sent, expected, sizes, stream):
                self._call_torch(received, sent, expected, sizes)
            return None
        work = self._call_torch(received, sent, expected, sizes)
        if wait:
            work.wait()
        return None if wait else work

    def swap_aside(self, received: Tensor, sent: Tensor, expected: list[int], sizes: list[int], stream: Any) -> Any:
        """Enqueue an exchange, as :meth:`swap`, beside ``stream``, which has to be the current stream.

        Returns:
            The work: its ``wait`` orders ``stream`` after the exchange. It keeps both tensors alive.
        """
        if not self._on_gpu:
            return self._call_torch(received, sent, expected, sizes)
        side = self._side
        self._ready.record(stream)
        side.wait_event(self._ready)
        if not self._call_nccl(received, sent, expected, sizes, side.cuda_stream):
            with torch.cuda.stream(side):
                self._call_torch(received, sent, expected, sizes)
        return _OnItsWay(stream, side.record_event(), (received, sent))

    def is_idle(self) -> bool:
        """Return whether all ranks have taken part in what this one has enqueued last."""
        if self._on_gpu:
            return bool(self.done.query())
        return self.latest is None or bool(self.latest.is_complete())

    def close(self) -> None:
        """Close the connections."""
        with contextlib.suppress(RuntimeError, ValueError, AssertionError):  # the default group is gone already
            dist.destroy_process_group(self._group)

    def abort(self) -> None:
        """Abort exchanges in flight, which unblocks the ranks that wait for this one, and kernels on this GPU."""
        if self._on_gpu:
            with contextlib.suppress(RuntimeError):
                self._group.abort()
        else:
            self.close()

    def _call_torch(self, received: Tensor, sent: Tensor, expected: list[int], sizes: list[int]) -> Any:
        options = dist.AllToAllOptions()
        options.asyncOp = not self._on_gpu
        return self._backend.alltoall_base(received, sent, expected, sizes, options)

    def _call_nccl(self, received: Tensor, sent: Tensor, expected: list[int], sizes: list[int], stream: int) -> bool:
        """Call NCCL, if it is connected. Return whether it is; it is not before the first exchange."""
        nccl = self._nccl
        communicator = 0 if nccl is None else self._backend._comm_ptr()  # raises if it has been closed
        if nccl is None or not communicator:
            return False
        source, target, width = sent.data_ptr(), received.data_ptr(), sent.element_size()
        code = nccl.begin()
        for other, (there, here) in enumerate(zip(sizes, expected, strict=True)):
            if there:
                code = code or nccl.send(source, there * width, _BYTES, other, communicator, stream)
                source += there * width
            if here:
                code = code or nccl.receive(target, here * width, _BYTES, other, communicator, stream)
                target += here * width
        code = nccl.end() or code  # in any case, for others that use NCCL in this thread
        if code:
            raise RuntimeError(f"NCCL: {nccl.reason(code).decode()}")
        return True


@dataclass
class _OnItsWay:
    stream: Any
    event: Any
    kept: tuple[Tensor, Tensor]  # whose memory would else be used again on that stream

    def wait(self) -> None:
        self.stream.wait_event(self.event)


@dataclass(frozen=True)
class _NCCL:
    """Functions of NCCL."""

    begin: Callable[..., int]
    send: Callable[..., int]
    receive: Callable[..., int]
    end: Callable[..., int]
    reason: Callable[..., bytes]


@cache
def _nccl() -> _NCCL | None:
    """Those that torch itself calls; ``None`` where it keeps them for itself."""
    path = str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so")
    try:  # it is there, and so are the libraries that it needs: nothing is loaded
        short, long = ctypes.PyDLL(path), ctypes.CDLL(path)  # other threads go on while ``long`` runs
        found = _NCCL(short.ncclGroupStart, short.ncclSend, short.ncclRecv, long.ncclGroupEnd, short.ncclGetErrorString)
    except (OSError, AttributeError):
        return None
    pointer = ctypes.c_void_p
    for name in ("ncclSend", "ncclRecv"):
        getattr(short, name).argtypes = (pointer, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, pointer, pointer)
    short.ncclGetErrorString.restype = ctypes.c_char_p
    return found


def _new_group(device: torch.device, timeout: float) -> Any:
    """All ranks, for this exchange alone."""
    if device.type == "cpu":
        return dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
    options = dist.ProcessGroupNCCL.Options()
    options.config.blocking = 1  # whatever the environment sets: work is enqueued when NCCL returns
    options._timeout = timedelta(seconds=10 * timeout)  # the exchange loses patience first
    return dist.new_group(backend="nccl", timeout=options._timeout, pg_options=options)


_BROKEN = "nobody: broken"
_LONGEST_END = (
    60.0  # seconds that the end of a run waits for ranks that have not heard of it; the watch tells them, too
)
_LAST_KERNELS = 2.0  # seconds for what is under way between ranks that have all come to their ends


class Connections:
    """The communicators with the other ranks. Each belongs to one exchange at a time, the same on all ranks.

    Rank 0 chooses one, and the others read it from the store. It chooses among those that its own exchanges returned.
    On another rank, the exchange before may still be under way, which is waited for: it takes none of the ranks that
    are through, since an exchange gives its communicator back after equally many calls on all ranks.

    Args:
        device: device of this rank.
        timeout: seconds to wait for other ranks.
    """

    def __init__(self, device: torch.device, timeout: float) -> None:
        self._device, self._timeout = device, timeout
        self._store = control.side_store()  # others may wait in the ranks' own for long
        self._condition = threading.Condition()
        self._made: list[Peers] = []
        self._users: list[str] = []
        """Whose each communicator is, those included that are still to be made; empty: nobody's."""
        self._latest: list[str] = []
        """Who has had each of them last."""
        self._debts: dict[str, Callable[[Peers], None]] = {}
        """Of exchanges that did not wait for their turn."""

    def take(self, key: str) -> Peers:
        """Return a communicator for an exchange, which gives it back. All ranks call it.

        Args:
            key: the same on all ranks, another each time.

        Raises:
            RankError: rank 0 does not come; the exchange before does not end on this rank, or has broken.
        """
        number, before = self._choose(key) if world.current_rank() == 0 else self._hear(key)
        with self._condition:
            self._wait_until_free(number, before)
            if self._users[number] == _BROKEN:
                raise RankError("Expected connections between the GPUs, got some that an exchange has broken off.")
            self._users[number] = self._latest[number] = key
            if not self._condition.wait_for(lambda: len(self._made) >= number, self._timeout):
                raise RankError(f"Expected connections between the GPUs to be made within {self._timeout:g} s.")
            if number < len(self._made):
                return self._made[number]
        peers = Peers(self._device, self._timeout)  # one after the other, in the same order on all ranks
        with self._condition:
            self._made.append(peers)
            self._condition.notify_all()
        return peers

    def take_at_once(self, key: str, settle: Callable[[Peers], None]) -> Peers | None:
        """Return a communicator as :meth:`take`, unless that may take other ranks.

        Otherwise return ``None``. Whoever takes next what the exchange should have had on this rank calls ``settle``
        with it before; or the exchange itself calls :meth:`take`, after :meth:`forgive`.
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
        """Return whether nobody has called ``settle`` for an exchange, and nobody will."""
        with self._condition:
            return self._debts.pop(key, None) is not None

    def give_back(self, peers: Peers, *, broken: bool = False) -> None:
        """Let other exchanges have a communicator; or none, where it is broken."""
        with self._condition:
            if peers in self._made:
                self._users[self._made.index(peers)] = _BROKEN if broken else ""
                self._condition.notify_all()

    def close(self) -> None:
        """Close all at the end of the run.

        What this rank has announced may reach ranks that are still in a step, so it is waited for. A rank that ends
        elsewhere, or has broken its communicator, does not come any more: then it is aborted. Else the end of the
        process group, which closes those of NCCL together with the other ranks, would wait for it for ever.
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
        """Publish that this rank closes its communicators; return what tells whether all others do, or are gone."""
        rank, key = world.current_rank(), f"connections {self._timeout:g}/closed"
        missing = [f"{key}/{other}" for other in range(world.current_size()) if other != rank]

        def all_closed() -> bool:
            try:
                missing[:] = [missing[k] for k in control.absent(self._store, missing)]
            except RuntimeError:  # whoever holds the store has gone
                missing.clear()
            return not missing

        with contextlib.suppress(RuntimeError):
            self._store.set(f"{key}/{rank}", "")
        return all_closed

    def _choose(self, key: str) -> tuple[int, str]:
        """On rank 0, choose a communicator, and publish it with its former user."""
        with self._condition:
            number = self._users.index("") if "" in self._users else len(self._users)
            before = self._latest[number] if number < len(self._users) else ""
            self._users[number : number + 1] = [""]
            self._latest[number : number + 1] = [before]
            self._users[number] = key
        self._store.set(key, f"{number} {before}")
        return number, before

    def _hear(self, key: str) -> tuple[int, str]:
        """Return what rank 0 has published."""
        if not control.appears(self._store, key, world.current_size(), self._timeout):
            raise ExchangeLostError(f"Rank 0 did not come to an exchange within {self._timeout:g} s.", ranks=(0,))
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
                f"Expected an epoch to end on this rank within {self._timeout:g} s, as it has on rank 0, got an "
                "iterator that is open. Leave loops on all ranks after the same batch."
            )

    def _is_free(self, number: int, before: str) -> bool:
        """Whether this rank is through with the exchange that had a communicator before, or never will be."""
        if world.current_rank() == 0:
            return True
        while len(self._users) <= number:
            self._users.append("")
            self._latest.append("")
        return self._users[number] == _BROKEN or (not self._users[number] and self._latest[number] == before)


def _is_idle(peers: Peers, others_ended: Callable[[], bool], timeout: float) -> bool:
    """Return whether nothing is under way any more, once that is so, or nobody is left who could end it."""
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
