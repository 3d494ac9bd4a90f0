"""Communicators between ranks: gloo or, between GPUs, NCCL."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_BYTES = 0  # ncclInt8


class Peers:
    """A communicator with the other ranks. All ranks create it, and call it in lockstep, one exchange at a time.

    The communicator is torch's. Once it is connected, NCCL is called directly: the overhead of ``torch.distributed``
    takes the host several times as long as the call.

    Attributes:
        group: its process group.
        is_connected: whether ranks have exchanged something.
        latest: the last announcement to the other ranks, which may be in flight.
        done: event after the latest exchange; ``None`` without a GPU.
    """

    def __init__(self, device: torch.device, timeout: float) -> None:
        self.is_connected = False
        self.latest: Any = None
        self.done: Any = None
        self._device, self._on_gpu = device, device.type == "cuda"
        self.group: Any = _new_group(device, timeout)
        self._backend = self.group._get_backend(device)
        self._nccl = _nccl() if self._on_gpu and hasattr(self._backend, "_comm_ptr") else None
        self._side: Any = None
        if self._on_gpu:  # prioritized over the kernels that gather the next part
            self._side = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.done = self._side.record_event()

    def swap(self, received: Tensor, sent: Tensor, expected: list[int], sizes: list[int], *, wait: bool = True) -> Any:
        """Enqueue an exchange of parts of two tensors on the current stream; RuntimeError: a rank is lost or late.

        Args:
            received: ``[...]``, output: data from each rank; entries may follow.
            sent: ``[...]``: data to each rank; entries may follow.
            expected: ``[ranks]``: entries from each rank; 0 from this one.
            sizes: ``[ranks]``: entries to each rank; 0 to this one.
            wait: without a GPU, wait for the exchange; otherwise return the work to wait for.
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
        """Enqueue an exchange, as :meth:`swap`, beside ``stream``, which must be the current stream.

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

    def swap_each(self, received: Sequence[Tensor], sent: Sequence[Tensor]) -> list[Any]:
        """Enqueue an exchange of ``[ranks]`` tensors of any sizes, which may overlap; empty ones for this rank.

        Returns:
            The work: :func:`wait_for` orders the current stream, or the host, after the exchange.
        """
        if self._on_gpu:
            return [dist.all_to_all(list(received), list(sent), group=self.group, async_op=True)]
        return self.receive_each(received) + self.send_each(sent)

    def send_each(self, sent: Sequence[Tensor]) -> list[Any]:
        """Begin to send ``[ranks]`` tensors, over gloo, except empty ones."""
        return [dist.isend(each, rank, group=self.group) for rank, each in enumerate(sent) if len(each)]

    def receive_each(self, received: Sequence[Tensor]) -> list[Any]:
        """Begin to receive ``[ranks]`` tensors, over gloo, except empty ones."""
        return [dist.irecv(each, rank, group=self.group) for rank, each in enumerate(received) if len(each)]

    def is_idle(self) -> bool:
        """Return whether all ranks have participated in the last collective that this one has enqueued."""
        if self._on_gpu:
            return bool(self.done.query())
        return self.latest is None or bool(self.latest.is_complete())

    def close(self) -> None:
        """Close the connections."""
        with contextlib.suppress(RuntimeError, ValueError, AssertionError):  # the default group is destroyed
            dist.destroy_process_group(self.group)

    def abort(self) -> None:
        """Abort exchanges in flight, which unblocks the ranks that wait for this one, and kernels on this GPU."""
        if self._on_gpu:
            with contextlib.suppress(RuntimeError):
                self.group.abort()
        else:
            self.close()

    def _call_torch(self, received: Tensor, sent: Tensor, expected: list[int], sizes: list[int]) -> Any:
        options = dist.AllToAllOptions()
        options.asyncOp = not self._on_gpu
        received, sent = received[: sum(expected)], sent[: sum(sizes)]
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


def wait_for(works: list[Any]) -> None:
    """Wait for work in flight, and forget it; RuntimeError: a rank is lost or late."""
    while works:
        works.pop().wait()


@dataclass
class _OnItsWay:
    stream: Any
    event: Any
    kept: tuple[Tensor, Tensor]  # whose memory would otherwise be used again on that stream

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
    """Return the functions that torch itself calls; ``None``: torch does not export them."""
    path = str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so")
    try:  # this library and its dependencies are loaded already
        short, long = ctypes.PyDLL(path), ctypes.CDLL(path)  # other threads continue while ``long`` runs
        found = _NCCL(short.ncclGroupStart, short.ncclSend, short.ncclRecv, long.ncclGroupEnd, short.ncclGetErrorString)
    except (OSError, AttributeError):
        return None
    pointer = ctypes.c_void_p
    for name in ("ncclSend", "ncclRecv"):
        getattr(short, name).argtypes = (pointer, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, pointer, pointer)
    short.ncclGetErrorString.restype = ctypes.c_char_p
    return found


def _new_group(device: torch.device, timeout: float) -> Any:
    """Return a group of all ranks that nothing else uses."""
    if device.type == "cpu":
        return dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
    options = dist.ProcessGroupNCCL.Options()
    options.config.blocking = 1  # regardless of the environment: work is enqueued when NCCL returns
    options._timeout = timedelta(seconds=timeout)
    return dist.new_group(backend="nccl", timeout=options._timeout, pg_options=options)
