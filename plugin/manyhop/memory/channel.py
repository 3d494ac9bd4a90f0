"""Messages with file descriptors between the processes of a node, and copies that processes keep on record.

A process keeps a record of each copy that it uses: an anonymous file, whose name /proc shows to other processes of the
same user. They open it there, and the memory that it lists. The kernel drops it with its process, however that ends.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import socket
import stat
import struct
import sys
import tempfile
import weakref
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

from manyhop.system.threads import in_forked_children

Message = dict[str, Any]
End = TypeVar("End", socket.socket, FileIO)

_ABSTRACT = sys.platform == "linux"  # names of sockets that are no files
_LENGTH = struct.Struct("!I")
_MAX_FDS = 250  # the kernel passes 253 at once

_open: weakref.WeakSet[socket.socket | FileIO] = weakref.WeakSet()


def send(connection: socket.socket, message: Message, fds: list[int] | None = None) -> None:
    """Send one message. It is short, so that sends do not wait for the receiver."""
    body = json.dumps(message).encode()
    data = _LENGTH.pack(len(body)) + body
    sent = socket.send_fds(connection, [data], fds or [])
    if sent < len(data):  # else the other end may have its answer and be gone
        connection.sendall(data[sent:])


def receive(connection: socket.socket) -> tuple[Message, list[int]]:
    """Receive one message and its descriptors. Raises EOFError if the other end is closed."""
    head, fds, _, _ = socket.recv_fds(connection, _LENGTH.size, _MAX_FDS)
    try:
        head += _receive_exactly(connection, _LENGTH.size - len(head))
        return json.loads(_receive_exactly(connection, _LENGTH.unpack(head)[0])), fds
    except BaseException:
        close_all(fds)
        raise


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def address_of(name: str) -> str:
    """Return where a service of this name listens."""
    if _ABSTRACT:
        return f"\0{name}"
    folder = Path(tempfile.gettempdir()) / f"manyhop-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "Expected a folder that nobody else may enter. Remove it.", str(folder))
    return str(folder / hashlib.sha256(name.encode()).hexdigest()[:20])  # paths of sockets may have 100 characters


def listen(address: str) -> socket.socket | None:
    """Return the service's end; ``None`` if another process has it."""
    listener = new_socket()
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return listener


def remove(address: str) -> None:
    """Remove the name of a service where names of sockets are files."""
    if not _ABSTRACT:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address)


def new_socket() -> socket.socket:
    """Close one end in forked children."""
    return not_inherited(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))


def not_inherited(end: End) -> End:
    """Close this in forked children: they must not keep claims of their parent alive, or hide its death."""
    _open.add(end)
    return end


def check_peer(connection: socket.socket) -> None:
    """Refuse to talk to other users. Elsewhere than on Linux, the folder of the socket is closed to them."""
    if not hasattr(socket, "SO_PEERCRED"):
        return
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    if struct.unpack("3i", credentials)[1] != os.getuid():
        raise PermissionError(errno.EPERM, "another user has the socket for shared memory")


def close_all(fds: list[int]) -> None:
    """Close descriptors, and clear the list."""
    for fd in fds:
        os.close(fd)
    fds.clear()


def _after_fork() -> None:
    for end in list(_open):
        end.close()


in_forked_children(_after_fork)


def record(name: str, message: Message, fds: Sequence[int]) -> FileIO | None:
    """Let other processes find a copy until the record is closed; ``None`` if the system has no such files.

    Args:
        name: the same in all processes; at most 200 characters.
        message: facts that another process needs in addition to the descriptors.
        fds: of its memory. This process must keep them, or others of the same files, as long as the record.
    """
    if not hasattr(os, "memfd_create"):
        return None
    kept = not_inherited(FileIO(os.memfd_create(name), "w"))
    kept.write(json.dumps({"message": message, "files": [_identity(os.fstat(fd)) for fd in fds]}).encode())
    return kept


def find(name: str) -> tuple[Message, list[int]] | None:
    """Return the message and descriptors of a copy that a process has; ``None``: none has.

    Takes about 20 us for each file that processes of this user have open.
    """
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, KeyError, ValueError):  # it has just ended, or dropped the copy
            files = list((process / "fd").iterdir()) if process.stat().st_uid == os.getuid() else []
            place = next((file for file in files if _target(file) == f"/memfd:{name} (deleted)"), None)
            if place is not None:
                content = json.loads(place.read_bytes())
                return content["message"], _open_all(files, content["files"])
    return None


def _open_all(files: Sequence[Path], wanted: Sequence[list[int]]) -> list[int]:
    """Return new descriptors of files, by their identities, which are all among ``files``."""
    by_identity: dict[tuple[int, ...], Path] = {}
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            by_identity[tuple(_identity(file.stat()))] = file
    fds: list[int] = []
    try:
        for identity in wanted:
            fds.append(os.open(by_identity[tuple(identity)], os.O_RDWR))
            if _identity(os.fstat(fds[-1])) != identity:
                raise FileNotFoundError  # the number is that of another file by now
    except BaseException:
        close_all(fds)
        raise
    return fds


def _target(file: Path) -> str:
    with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
        return os.readlink(file)
    return ""


def _identity(file: os.stat_result) -> list[int]:
    return [file.st_dev, file.st_ino]
