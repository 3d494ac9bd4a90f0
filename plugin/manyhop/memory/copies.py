"""Memory that the processes of a node find or build by key.

The process that binds the socket of a key builds. The others connect to that socket and wait for its message and file
descriptors. A process that uses a copy keeps a record of it: an anonymous file, which ``/proc`` shows to later
processes of the same user. The kernel drops sockets and records with their process, however that ends.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from manyhop.errors import RankError
from manyhop.memory import segments
from manyhop.memory.segments import Segment
from manyhop.system.threads import in_forked_children

AVAILABLE = sys.platform == "linux"
"""Whether the system has sockets without files, and ``/proc``."""

_LINGER_S = 5.0  # for processes that call later, after a failure
_PAUSE_S = 0.002
_LONGEST = 4000  # characters of an error
_MAX_BYTES, _MAX_FDS = 1 << 16, 250  # of a message; the kernel passes 253 descriptors at once
_BACKLOG = 1024


@dataclass(frozen=True)
class Copy:
    """An object in shared memory."""

    segments: tuple[Segment, ...]
    """The segment with the pickle, then segments of tensors that were in shared memory before."""
    pickle_at: tuple[int, int] = (0, 0)
    """Offset and bytes of the pickle."""

    def message(self) -> dict[str, Any]:
        """Return the facts that another process needs in addition to the descriptors."""
        return {"segments": [s.id for s in self.segments], "pickle_at": list(self.pickle_at)}

    @classmethod
    def of(cls, message: dict[str, Any], fds: list[int]) -> Copy:
        """Return the copy of another process. It takes over the descriptors."""
        attached = tuple(segments.attach(id, fd) for id, fd in zip(message["segments"], fds, strict=True))
        begin, size = message["pickle_at"]
        return cls(attached, (begin, size))


def find_or_build(
    key: str, build: Callable[[], Copy], *, what: str, rank: int, timeout: float, others: int = 0
) -> Copy:
    """Return the copy that a process of this node uses or is building, or build it.

    Args:
        key: at most 80 characters, which no other user can guess; ``build`` must not use it.
        build: returns the copy.
        what: name of the object in errors.
        rank: rank of this process, for errors of the others.
        timeout: seconds to wait for the process that builds and, in that process, for ``others``.
        others: number of other processes that also call this; the builder waits for them.

    Raises:
        RankError: building failed or is too slow in another process; others did not call, or for a different object.
    """
    end = time.monotonic() + timeout
    while True:
        with _new_socket() as lock:
            _locks.add(lock)
            try:
                lock.bind(_address(key))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return _build(lock, key, build, what, rank, others, timeout)
        with _new_socket() as connection:
            copy = _wait(connection, key, what, timeout, end)
        if copy is not None:
            return copy


def _build(
    lock: socket.socket, key: str, build: Callable[[], Copy], what: str, rank: int, others: int, timeout: float
) -> Copy:
    lock.listen(_BACKLOG)
    try:
        found = _find(key, what)
        copy = found or build()
    except BaseException as error:
        message = {"error": f"{what} failed on rank {rank}: {type(error).__name__}: {error}"[:_LONGEST], "rank": rank}
        patient = isinstance(error, Exception)
        _answer(lock, message, [], others if patient else 0, min(timeout, _LINGER_S))
        raise
    message = {"what": what, "rank": rank, **copy.message()}
    if not found:
        _record(key, message, copy)
    expected = 0 if found else others
    asked = _answer(lock, message, [s.fd for s in copy.segments], expected, timeout)
    if asked < expected:
        raise RankError(
            f"{what}: {others - asked} of the {others + 1} ranks of this node did not call it in time. All ranks "
            "must make the same calls; if one is only slow, pass a larger timeout."
        )
    return copy


def _answer(lock: socket.socket, message: dict[str, Any], fds: list[int], at_least: int, timeout: float) -> int:
    """Answer all waiting processes, and later ones until ``at_least`` have asked; return their number."""
    asked, end, refuses = 0, time.monotonic() + timeout, False
    while True:
        lock.settimeout(max(0.0, end - time.monotonic()) if asked < at_least and not refuses else 0)
        try:
            connection, _ = lock.accept()
        except (TimeoutError, BlockingIOError):
            if refuses:
                return asked
            lock.shutdown(socket.SHUT_RDWR)  # later processes try again; those that have connected are answered
            refuses = True
            continue
        with connection, contextlib.suppress(OSError):  # it has ended, or belongs to another user
            _check_peer(connection)
            asked += 1
            socket.send_fds(connection, [json.dumps(message).encode()], fds)


def _wait(connection: socket.socket, key: str, what: str, timeout: float, end: float) -> Copy | None:
    """Return the copy of the process that builds it; ``None`` if there is no such process."""
    connection.settimeout(max(0.001, end - time.monotonic()))
    try:
        connection.connect(_address(key))
    except (ConnectionRefusedError, BlockingIOError):  # it has ended, does not listen yet, or has too many connections
        if time.monotonic() > end:
            raise RankError(f"{what}: no process of this node builds it, but one holds its name.") from None
        time.sleep(_PAUSE_S)
        return None
    process = _check_peer(connection)
    try:
        content, fds, _, _ = socket.recv_fds(connection, _MAX_BYTES, _MAX_FDS)
    except TimeoutError:
        raise RankError(
            f"{what}: process {process}, which builds it for this node, was not ready within {timeout:g} s. If it is "
            "only slow, pass a larger timeout."
        ) from None
    except ConnectionResetError:
        content, fds = b"", []
    if not content:  # it has ended, or had just answered all others
        found = _find(key, what)
        if found is None:
            raise RankError(
                f"{what}: process {process}, which was building it for this node, has ended. Look for "
                "its error; it may have run out of memory."
            )
        return found
    message = json.loads(content)
    if "error" in message:
        raise RankError(message["error"], ranks=(message["rank"],))
    return _use(key, what, message, fds)


def _use(key: str, what: str, message: dict[str, Any], fds: list[int]) -> Copy:
    """Use a copy of another process."""
    if message["what"] != what:
        for fd in fds:
            os.close(fd)
        raise RankError(
            f"{what} on this rank, but {message['what']} on rank {message['rank']}. All ranks of a node must make "
            "the same calls in the same order."
        )
    copy = Copy.of(message, fds)
    _record(key, message, copy)
    return copy


def _record(key: str, message: dict[str, Any], copy: Copy) -> None:
    """Let other processes find a copy as long as this one uses it."""
    record = os.memfd_create(f"manyhop {key}")
    os.write(record, json.dumps(message).encode())
    weakref.finalize(copy.segments[0].memory, os.close, record).atexit = False


def _find(key: str, what: str) -> Copy | None:
    """Return the copy that a process of this user has a record of; ``None`` if none has."""
    for process in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        folder = f"/proc/{process}/fd"
        with contextlib.suppress(OSError, KeyError, ValueError):  # it has just ended or dropped the copy, or is closed
            if os.stat(folder).st_uid == os.getuid():
                files = {_target(f"{folder}/{fd}"): f"{folder}/{fd}" for fd in os.listdir(folder)}
                with open(files[_memfd(f"manyhop {key}")], "rb") as record:
                    message = json.load(record)
                fds = _open_all(files, [_memfd(segments.file_name(id)) for id in message["segments"]])
                return _use(key, what, message, fds)
    return None


def _open_all(files: dict[str, str], names: list[str]) -> list[int]:
    fds: list[int] = []
    try:
        for name in names:
            fds.append(os.open(files[name], os.O_RDWR))
            if _target(f"/proc/self/fd/{fds[-1]}") != name:
                raise FileNotFoundError(name)  # the number belongs to a different file now
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return fds


def _target(file: str) -> str:
    with contextlib.suppress(FileNotFoundError):  # it is closed now
        return os.readlink(file)
    return ""


def _memfd(name: str) -> str:
    return f"/memfd:{name} (deleted)"


def _address(key: str) -> str:
    return f"\0manyhop {key}"


def _check_peer(connection: socket.socket) -> int:
    """Return the process at the other end; raise PermissionError for other users."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process, user, _ = struct.unpack("3i", credentials)
    if user != os.getuid():
        raise PermissionError(errno.EPERM, "another user has the socket for shared memory")
    return int(process)


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _close_locks() -> None:
    for lock in list(_locks):
        lock.close()


_locks: weakref.WeakSet[socket.socket] = weakref.WeakSet()
in_forked_children(_close_locks)  # which would hide the end of their parent
