"""One copy per node: an object is made by one rank of each node, and all ranks of the node see the same memory."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from typing import Any, TypeVar

from manyhop.arguments import seconds
from manyhop.errors import InputError, RankError
from manyhop.memory import segments
from manyhop.memory.broker import Broker
from manyhop.memory.packing import pack, receive, unpack
from manyhop.memory.segments import Bytes, Segment, return_freed_memory
from manyhop.ranks import control, world
from manyhop.ranks.control import DEFAULT_TIMEOUT

T = TypeVar("T")


class _Node:
    """This process among the ranks of its node, in one run."""

    def __init__(self, rank: int, node: int, token: str) -> None:
        self.token = token
        self.broker = Broker(f"manyhop-{token}-{node}", rank)
        self.calls = 0


_node: _Node | None = None
_brokers: dict[str, Broker] = {}
_loading = False


def share(load: Callable[[], T], *, what: str | None = None, timeout: float = DEFAULT_TIMEOUT) -> T:
    """What ``load()`` returns, in memory that all ranks of the node share. Every rank of the run calls this.

    ``load`` runs on one rank of each node. Every rank, also that one, gets an object of its own whose tensors and numpy
    arrays are views of the same memory. While it is made, it exists twice. A process that is the only one on its node
    gets what ``load()`` returns as it is. Nodes may load at different speed: all ranks return when all nodes are done.

    Args:
        load: takes nothing, returns anything that can be pickled, with its tensors on the CPU. Must not communicate.
        what: name of what is shared, for errors; the same on all ranks. Default: the name of ``load``.
        timeout: seconds to wait for another rank's ``load()``: on this node, then on the others.

    Raises:
        RankError: ``load()`` failed or was killed on another rank, or takes too long there; the ranks make different
            calls.
        InputError: ``load()`` returned something that cannot be shared.
        CapacityError: there is not enough memory.
    """
    seconds("timeout", timeout)
    if _loading:
        raise InputError("share() was called inside of load(), which runs on one rank only. Share the whole once.")

    def guarded() -> T:
        global _loading
        _loading = True
        try:
            return load()
        finally:
            _loading = False

    found, name = world.init(), _name(load) if what is None else what

    def get() -> T:
        if found.local_world_size == 1:
            return guarded()
        node = _join(found)
        node.calls += 1
        numbered = f"share() number {node.calls}, of {name}"[:1000]
        return _once(node.broker, f"share {node.calls}", guarded, numbered, found.local_world_size, timeout)

    return (
        get() if found.num_nodes == 1 else control.attempt("share()", get, timeout=timeout, what=f"share() of {name}")
    )


def once_per_node(key: str, build: Callable[[], T], *, what: str) -> T:
    """What ``build()`` returns: made by the rank of this node that requests ``key`` first, as long as one uses it.

    This is not a collective: any rank may ask, at any time, alone. The key has to name everything that ``build``
    depends on. It is ``build()`` without a ``share()`` before, after the end of its run, and where the rank that
    builds it fails, is killed or takes too long.

    Args:
        key: any length.
        build: takes nothing, returns anything that can be pickled. Must not communicate.
        what: name of what is built, for errors of other ranks.
    """
    if _node is None:
        return build()
    try:
        return _once(_node.broker, _digest(key), build, what, 1, DEFAULT_TIMEOUT)
    except RankError:  # of another rank that builds: its own error, if there is one, comes here as well
        return build()


def node_segment(key: str, size: int, begin: Callable[[Bytes], None], *, what: str, remedy: str) -> Segment | None:
    """Memory that the ranks of this node share, which all of them may write to, as long as one uses it.

    This is not a collective: any rank may ask, at any time, alone, also before ``init``.

    Args:
        key: any length; the same size belongs to it on all ranks.
        size: bytes.
        begin: called with the memory, all zeros, by the rank that asks first, before others get it.
        what: name of it, for errors.
        remedy: what to do where there is not as much memory.

    Returns:
        ``None`` where no other rank of the node is known of.

    Raises:
        CapacityError: there is not as much memory.
        RankError: the rank that makes it failed.
    """
    name = world.launch()
    if name is None:
        return None
    if name not in _brokers:
        _brokers[name] = Broker(f"manyhop-{_digest(f'{os.getuid()} {name}')}", world.current_rank())
    ticket = _brokers[name].request(_digest(key), what=what, expected=1, timeout=DEFAULT_TIMEOUT)
    try:
        if ticket.builds:
            segment = segments.create(what, size, remedy)
            begin(segment.memory)
            ticket.deliver({"segment": segment.id}, [segment.fd])
        else:
            segment = segments.attach(ticket.message["segment"], *ticket.fds)
    except BaseException as error:
        if ticket.builds:
            ticket.fail(f"{type(error).__name__}: {error}")
        ticket.give_up()
        raise
    ticket.hold(segment.memory)
    return segment


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _once(broker: Broker, key: str, build: Callable[[], T], what: str, expected: int, timeout: float) -> T:
    ticket = broker.request(key, what=what, expected=expected, timeout=timeout)
    try:
        if ticket.builds:
            packed = pack(what, build())
            return_freed_memory()
            value = unpack(packed)
            ticket.deliver(packed.message, packed.fds)
        else:
            packed = receive(ticket.message, ticket.fds)
            value = unpack(packed)
    except BaseException as error:
        if ticket.builds:
            ticket.fail(f"{type(error).__name__}: {error}")
        ticket.give_up()
        raise
    ticket.hold(packed.segments[0].memory)
    return value  # type: ignore[no-any-return]  # a pickle has no type


def _join(found: world.World) -> _Node:
    global _node
    token = world.token()
    if _node is None or _node.token != token:
        _node = _Node(found.rank, found.node, token)
        world.at_shutdown(_leave)
    return _node


def _leave() -> None:
    global _node
    node, _node = _node, None
    if node is not None:
        node.broker.close()


def _name(load: Callable[[], Any]) -> str:
    if isinstance(load, functools.partial):
        return _name(load.func)
    code = getattr(load, "__code__", None)
    name = getattr(load, "__qualname__", type(load).__qualname__)
    return name if code is None else f"{name} (line {code.co_firstlineno})"
