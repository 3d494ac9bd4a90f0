"""The broker: "get or build", by key, between the processes of a node.

The first process that requests a key builds it; the others wait for its delivery: a short message and file descriptors.
The first process that needs the service runs it, in a thread. A connection is a claim to one object: while a process
keeps the connection open, it uses the object. The kernel closes the connections of processes that end, in any way, so
their end is noticed at once and nothing is left behind. If the process that ran the service has ended, later processes
find the objects in the processes that use them.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import selectors
import socket
import threading
import time
import weakref
from dataclasses import dataclass, field
from io import FileIO

from manyhop.errors import RankError
from manyhop.memory import channel
from manyhop.memory.channel import Message, receive, send

_log = logging.getLogger("manyhop")

_PROMPT_S = 5.0  # for the rest of a message whose beginning is there: who takes longer is stopped
_LINGER_S = 5.0  # at the end, for processes that have yet to ask
_LONGEST = 4000  # characters of an error


class Ticket:
    """The answer to the request of a key. ``builds``: this process must build it, and then ``deliver`` or ``fail``."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        self._connection, self._name = connection, name
        self._record: FileIO | None = None
        self.builds = True
        self.message: Message = {}
        self.fds: list[int] = []

    def take(self, message: Message, fds: list[int]) -> None:
        """Use an object that another process has built."""
        self._record = channel.record(self._name, message, fds)
        self.builds, self.message, self.fds = False, message, fds

    def take_if_found(self) -> None:
        """Use an object that other processes have from a service that has ended, and deliver it; if there is one."""
        found = channel.find(self._name)
        if found is not None:
            self.take(*found)
            self._deliver(*found, found=True)

    def deliver(self, message: Message, fds: list[int]) -> None:
        """Hand it to all who ask. The descriptors are duplicated."""
        self._record = channel.record(self._name, message, fds)
        self._deliver(message, fds, found=False)

    def _deliver(self, message: Message, fds: list[int], *, found: bool) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the service is gone: nobody waits for it
            send(self._connection, {"do": "deliver", "message": message, "found": found}, fds)

    def fail(self, text: str) -> None:
        """Send those who wait that there will be nothing."""
        with contextlib.suppress(OSError):
            send(self._connection, {"do": "fail", "error": text[:_LONGEST]})
        self.give_up()

    def hold(self, used: object) -> None:
        """Hold the claim as long as ``used`` exists."""
        weakref.finalize(used, self.give_up).atexit = False

    def give_up(self) -> None:
        """Give up the claim."""
        self._connection.close()
        if self._record is not None:
            self._record.close()


class Broker:
    """This process's access to the service of its node.

    Args:
        name: name that all ranks of a node and run use, and no other process; at most 80 characters, fit for a file.
        rank: of this process.
    """

    def __init__(self, name: str, rank: int) -> None:
        self._name = name
        self._rank = rank
        self._service: _Service | None = None

    def request(self, key: str, *, what: str, expected: int, timeout: float) -> Ticket:
        """Wait until ``key`` has been built, or must be built by this process.

        Args:
            key: of one thing.
            what: in words, for errors; must be the same in all processes that request the key.
            expected: how many processes will ask: it remains at least until they have. Afterwards, it
                remains until no process uses it.
            timeout: seconds to wait for the process that builds.

        Raises:
            RankError: building failed elsewhere, the process that builds ended or takes too long, the service ended.
        """
        end = time.monotonic() + timeout
        while True:
            connection = self._connect(what, end)
            ticket = self._request(connection, key, what, expected, timeout, end)
            if ticket is not None:
                return ticket

    def _request(
        self, connection: socket.socket, key: str, what: str, expected: int, timeout: float, end: float
    ) -> Ticket | None:
        """Return the answer to one connection; ``None``: the service was closing, and ended before it answered."""
        builder, answered = -1, False
        try:
            send(connection, {"do": "request", "key": key, "what": what, "rank": self._rank, "expected": expected})
            while True:
                connection.settimeout(max(0.001, end - time.monotonic()))
                reply, fds = receive(connection)
                answered = True
                if reply["do"] == "wait":
                    builder = reply["rank"]
                elif reply["do"] == "fail":
                    raise RankError(reply["error"], ranks=tuple(reply["ranks"]))
                else:
                    connection.settimeout(None)
                    break
        except TimeoutError:
            connection.close()
            raise _too_late(what, timeout, builder) from None
        except (OSError, EOFError) as error:
            connection.close()
            if not answered and time.monotonic() < end:
                return None
            raise RankError(
                f"{what}: the process of this node that passes on shared memory has ended. Look for its error."
            ) from error
        except BaseException:
            connection.close()
            raise
        digest = hashlib.sha256(f"{self._name} {key} {what}".encode()).hexdigest()
        ticket = Ticket(connection, f"manyhop {digest}")
        try:
            if reply["do"] == "build":
                ticket.take_if_found()
            else:
                ticket.take(reply["message"], fds)
        except BaseException:
            ticket.give_up()
            raise
        return ticket

    def close(self) -> None:
        """End the service if it runs in this process, once all expected processes have requested.

        Wait some seconds for them. Objects remain usable, and later processes find them in those that use them.
        """
        if self._service is not None:
            self._service.close()
            self._service = None

    def _connect(self, what: str, end: float) -> socket.socket:
        """Return a connection to the service, which this process starts if needed."""
        address = channel.address_of(self._name)
        while True:
            connection = channel.new_socket()
            try:
                connection.settimeout(max(0.001, end - time.monotonic()))
                connection.connect(address)
                channel.check_peer(connection)
                return connection
            except (ConnectionRefusedError, FileNotFoundError, BlockingIOError):  # nobody there, or too many at once
                connection.close()
            except BaseException:
                connection.close()
                raise
            if time.monotonic() > end:
                raise RankError(f"{what}: no service for shared memory can be started on this node ({address!r}).")
            listener = channel.listen(address)
            if listener is None:
                time.sleep(0.002)  # another process is about to listen
            else:
                self._service = _Service(listener, address)


@dataclass(eq=False)
class _Peer:
    """A connection of the service."""

    connection: socket.socket
    rank: int = -1
    key: str = ""


@dataclass
class _Thing:
    what: str
    expected: int
    builder: _Peer
    came: int = 1
    message: Message | None = None
    error: str = ""
    fds: list[int] = field(default_factory=list)
    waiting: list[_Peer] = field(default_factory=list)
    users: set[_Peer] = field(default_factory=set)

    @property
    def is_pending(self) -> bool:
        return self.message is None and not self.error


class _Service:
    """The thread that tracks who builds, who waits and who uses what. All its state belongs to this thread."""

    def __init__(self, listener: socket.socket, address: str) -> None:
        self._listener, self._address = listener, address
        self._things: dict[str, _Thing] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._wake, wake = (channel.not_inherited(end) for end in socket.socketpair())
        self._selector.register(wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, args=(wake,), name="manyhop memory", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._wake.close()
        self._thread.join(_LINGER_S + _PROMPT_S)
        channel.remove(self._address)  # not later: files outlive their process

    def _serve(self, wake: socket.socket) -> None:
        try:
            end: float | None = None
            while end is None or (
                time.monotonic() < end and any(one.came < one.expected for one in self._things.values())
            ):
                # What was sent before the end is still passed on.
                for ready, _ in self._selector.select(None if end is None else max(0.0, end - time.monotonic())):
                    if ready.fileobj is wake:
                        end = time.monotonic() + _LINGER_S
                        self._selector.unregister(wake)
                        wake.close()
                    elif ready.fileobj is self._listener:
                        self._accept()
                    elif ready.data.connection.fileno() >= 0:  # not lost meanwhile
                        self._read(ready.data)
        finally:
            for held in list(self._selector.get_map().values()):
                held.fileobj.close()  # type: ignore[union-attr]  # all of them are sockets
            self._selector.close()
            self._wake.close()
            for thing in self._things.values():
                channel.close_all(thing.fds)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            _log.warning("The service for shared memory cannot take a connection: %s.", error)
            time.sleep(0.1)  # until files are closed, if there are too many
            return
        channel.not_inherited(connection)
        connection.settimeout(_PROMPT_S)
        try:
            channel.check_peer(connection)
        except OSError:
            connection.close()
            return
        self._selector.register(connection, selectors.EVENT_READ, _Peer(connection))

    def _read(self, peer: _Peer) -> None:
        try:
            message, fds = receive(peer.connection)
        except (OSError, EOFError, ValueError):
            self._drop_peer(peer)
            return
        thing = self._things.get(peer.key)
        builds = thing is not None and thing.builder is peer and thing.is_pending
        match message:
            case {
                "do": "request",
                "key": str(key),
                "what": str(what),
                "rank": int(rank),
                "expected": int(expected),
            } if not peer.key:
                peer.key, peer.rank = key, rank
                self._on_request(peer, what, expected)
            case {"do": "deliver", "message": dict(content), "found": bool(found)} if builds:
                assert thing is not None
                thing.message, thing.fds, fds = content, fds, []
                if found:
                    thing.expected = 0  # who else wants it finds it as well
                thing.users.add(peer)
                self._settle(peer.key)
            case {"do": "fail", "error": str(error)} if builds:
                assert thing is not None
                thing.error = f"{thing.what} failed on rank {peer.rank}: {error}"
                self._settle(peer.key)
            case _:
                _log.warning("The service for shared memory has got a message that it does not expect: ignored.")
                self._drop_peer(peer)
        channel.close_all(fds)

    def _on_request(self, peer: _Peer, what: str, expected: int) -> None:
        thing = self._things.get(peer.key)
        if thing is None:
            self._things[peer.key] = _Thing(what, expected, peer)
            self._send(peer, {"do": "build"})
            return
        thing.came += 1
        if thing.what != what:
            text = (
                f"{what} on rank {peer.rank}, but {thing.what} on rank {thing.builder.rank}. "
                "All ranks of a node have to make the same calls in the same order."
            )
            self._send(peer, {"do": "fail", "error": text, "ranks": []})
            return
        thing.waiting.append(peer)
        if thing.is_pending:
            self._send(peer, {"do": "wait", "rank": thing.builder.rank})
        else:
            self._settle(peer.key)

    def _settle(self, key: str) -> None:
        """Answer the processes that wait for a decided object; drop it if no process can request it."""
        thing = self._things[key]
        while thing.waiting:
            peer = thing.waiting.pop()
            if thing.error:
                self._send(peer, {"do": "fail", "error": thing.error, "ranks": [thing.builder.rank]})
            else:
                thing.users.add(peer)
                self._send(peer, {"do": "take", "message": thing.message}, thing.fds)
        self._forget_unused(key)

    def _forget_unused(self, key: str) -> None:
        thing = self._things.get(key)
        if thing is None or thing.is_pending or thing.users or thing.waiting or thing.came < thing.expected:
            return
        del self._things[key]
        channel.close_all(thing.fds)

    def _drop_peer(self, peer: _Peer) -> None:
        """Drop a connection whose other end is closed."""
        if peer.connection.fileno() < 0:
            return
        self._selector.unregister(peer.connection)
        peer.connection.close()
        thing = self._things.get(peer.key)
        if thing is None:
            return
        thing.users.discard(peer)
        if peer in thing.waiting:
            thing.waiting.remove(peer)
        if peer is thing.builder and thing.is_pending:
            thing.error = (
                f"{thing.what}: rank {peer.rank}, which did it for this node, has ended in the middle of it. "
                "Look for its error; it may have run out of memory."
            )
            self._settle(peer.key)
        else:
            self._forget_unused(peer.key)

    def _send(self, peer: _Peer, message: Message, fds: list[int] | None = None) -> None:
        try:
            send(peer.connection, message, fds)
        except OSError:
            self._drop_peer(peer)


def _too_late(what: str, timeout: float, builder: int) -> RankError:
    if builder < 0:
        return RankError(
            f"{what}: the process of this node that passes on shared memory did not answer in {timeout:g} s."
        )
    return RankError(
        f"{what}: rank {builder}, which does it for this node, was not ready within {timeout:g} s. If it is only slow, "
        "pass a larger timeout.",
        ranks=(builder,),
    )
