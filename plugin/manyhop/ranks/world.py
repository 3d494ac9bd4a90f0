"""The ranks of a run and their process group, which exists in torch.distributed or is created here."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import socket
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from manyhop.arguments import seconds
from manyhop.errors import InputError, RankError
from manyhop.ranks import control

_ANSWER_S = 2.0  # beyond the timeout: torch's own error has more details
_LAST_DROP_S = 0.05  # takes microseconds once the thread runs
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MEETING = {"MASTER_ADDR", "MASTER_PORT"}
_ATTEMPT = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "GROUP_RANK")


@dataclass(frozen=True)
class World:
    """The ranks of a run and their nodes. Does not communicate."""

    rank: int
    """Rank of this process, from 0."""

    nodes: tuple[int, ...]
    """``[world_size]``: the node of each rank. Nodes count from 0, in the order of their first ranks."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < len(self.nodes):
            raise InputError(f"Expected a rank in [0, {len(self.nodes)}), got {self.rank}.")
        first_seen = list(dict.fromkeys(self.nodes))
        if first_seen != list(range(len(first_seen))):
            raise InputError(f"Expected nodes numbered from 0 in the order of their first ranks, got {self.nodes}.")

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.nodes)

    @property
    def is_alone(self) -> bool:
        """Whether this is the only rank."""
        return len(self.nodes) == 1

    @property
    def num_nodes(self) -> int:
        """Number of nodes (machines)."""
        return max(self.nodes) + 1

    @property
    def node(self) -> int:
        """The node of this rank."""
        return self.nodes[self.rank]

    def ranks_of(self, node: int) -> tuple[int, ...]:
        """Return the ascending ranks on a node."""
        return tuple(rank for rank, of in enumerate(self.nodes) if of == node)

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The ascending ranks on this node."""
        return self.ranks_of(self.node)

    @property
    def local_rank(self) -> int:
        """Position of this rank on its node, from 0."""
        return self.local_ranks.index(self.rank)

    @property
    def local_world_size(self) -> int:
        """Number of ranks on this node."""
        return len(self.local_ranks)


def number_nodes(identities: Sequence[str]) -> tuple[int, ...]:
    """Return ``[world_size]`` node numbers from the node names of the ranks."""
    numbers: dict[str, int] = {}
    return tuple(numbers.setdefault(identity, len(numbers)) for identity in identities)


def node_identity(environ: Mapping[str, str], host: str) -> str:
    """Return the name of a rank's node: torchrun's number, otherwise the host."""
    return f"torchrun {environ['GROUP_RANK']}" if "GROUP_RANK" in environ else f"host {host}"


class _Run:
    """The result of ``init`` for one default group of torch.distributed."""

    def __init__(self, world: World, token: str, group: Any, owned: bool) -> None:
        self.world, self.token, self.group, self.owned = world, token, group, owned
        self.pid = os.getpid()
        self.at_end: list[Callable[[], None]] = []


_run: _Run | None = None
_had_group = False
_held: Any = None
"""The group of the latest run, until it is destroyed. DDP's reducer must not hold the last reference: it would wait for
gloo's threads while it holds the GIL, which they may need to release a tensor."""


def init(*, timeout: float = control.DEFAULT_TIMEOUT) -> World:
    """Return the ranks of the run, and create their process group if there is none.

    Uses torch.distributed's default group. If there is none, creates it from the variables that torchrun sets; without
    these, the process is the only rank. The group has gloo for CPU tensors and, with CUDA, NCCL for GPU tensors;
    neither CUDA nor NCCL starts before its first use. If ranks of a node see multiple GPUs, the current device of each
    is that with its number on the node. The first call communicates, so all ranks must make it; later calls return the
    same ranks. Scripts that call ``dist.init_process_group`` must do so earlier.

    Args:
        timeout: seconds to wait for the other ranks. Collectives of a group created here have torch's timeout.

    Raises:
        InputError: torchrun's variables are incomplete, or ``timeout`` is not a number of seconds.
        RankError: ranks are late, which it names, or a different program uses their address.
    """
    global _run, _held, _had_group
    import torch.distributed as dist

    seconds("timeout", timeout)
    initialized = dist.is_available() and dist.is_initialized()
    if _run is not None and _run.group is (dist.group.WORLD if initialized else None):
        return _run.world
    if _run is not None:
        shutdown()  # its group was destroyed
    owned = not initialized and _launched(os.environ)
    if not initialized and not owned:
        _run = _Run(World(0, (0,)), uuid.uuid4().hex, None, False)
        return _run.world
    if owned:
        store, rank, world_size = _meet(timeout)
    else:
        from torch.distributed.distributed_c10d import _get_default_store

        store, rank, world_size = _get_default_store(), dist.get_rank(), dist.get_world_size()
    control.attach(rank, world_size, store)
    try:
        facts = {"node": node_identity(os.environ, _host()), "token": uuid.uuid4().hex if rank == 0 else ""}
        every = control.exchange("manyhop.init()", facts, timeout=timeout)
        world = World(rank, number_nodes([facts["node"] for facts in every]))
        if owned:
            _make_group(store, world)
    except BaseException:
        control.detach()
        raise
    _run = _Run(world, every[0]["token"], dist.group.WORLD, owned)
    _held, _had_group = dist.group.WORLD, True
    control.on_destroy(_end_with_group, weakref.ref(_held), os.getpid())
    atexit.register(shutdown)
    return world


def shutdown() -> None:
    """End the run, and the process group if ``init`` has created it.

    Also called at exit, and when the user destroys the group. Newer objects end first: the threads of loaders whose
    ranks share batches (the rest of their epoch is lost), exchanges, the watch, memory over GPUs, then the process
    group. Gloo aborts a process that ends with an open group.
    """
    global _run
    run, _run = _run, None
    if run is None or run.pid != os.getpid():  # a forked child does not belong to the run
        return
    atexit.unregister(shutdown)
    with contextlib.ExitStack() as last_first:  # if one fails, the others still end
        last_first.callback(_leave, run)
        for end in run.at_end:
            last_first.callback(end)


def _end_with_group(group: weakref.ref[Any], pid: int) -> None:
    """End all users of a group that the user has destroyed, and release its store and port."""
    global _held
    if pid != os.getpid():
        return
    if _run is not None and _run.group is group():
        shutdown()
    if _held is not None and _held is group():
        time.sleep(_LAST_DROP_S)  # gloo's threads release their tensors: DDP may be the last owner now
        _held = None


@atexit.register
def _let_go() -> None:
    """End gloo's threads before the interpreter ends: a thread that releases its last tensor later aborts the process.

    Runs after ``shutdown``, which is registered later.
    """
    global _held
    if _had_group:
        gc.collect()  # DDP's models also hold the group, often in reference cycles
        _held = None
        time.sleep(_LAST_DROP_S)  # if others hold it, nothing can wait for its threads


def current() -> World:
    """Return the ranks of the run; before ``init``, a single one. Does not communicate."""
    return World(0, (0,)) if _run is None else _run.world


def token() -> str:
    """Return a random string of this run, equal on all ranks. Calls ``init``."""
    init()
    assert _run is not None
    return _run.token


def at_shutdown(end: Callable[[], None]) -> None:
    """Call ``end`` when the run ends, before its process group; functions registered later are called first."""
    init()
    assert _run is not None
    _run.at_end.append(end)


def current_rank() -> int:
    """Return the rank in the default group, otherwise by torchrun's variables, otherwise 0. Does not communicate."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ.get("RANK", 0))


def current_size() -> int:
    """Return the size of the default group, otherwise by torchrun's variables, otherwise 1. Does not communicate."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", 1))


def launch() -> str | None:
    """Return a name shared by the ranks of this node that were started together. Does not communicate.

    Returns:
        ``None`` if this rank is alone on its node, or ``MASTER_ADDR`` and ``MASTER_PORT`` are not set.
    """
    if current_size() == 1 or os.environ.get("LOCAL_WORLD_SIZE") == "1" or _MEETING - os.environ.keys():
        return None
    return " ".join(os.environ.get(name, "") for name in (*sorted(_MEETING), *_ATTEMPT))


def _leave(run: _Run) -> None:
    """Release the store and, if ``init`` has created it, the process group."""
    failing = getattr(sys, "last_exc", getattr(sys, "last_value", None)) is not None
    control.detach(linger=5.0 if run.owned and not failing else 0.0)
    if run.owned:
        import torch.distributed as dist

        if dist.is_initialized() and dist.group.WORLD is run.group:
            with contextlib.suppress(RuntimeError):  # peers may have ended
                dist.destroy_process_group()


def _make_group(store: Any, world: World) -> None:
    """Create the default group; all ranks have connected. Its collectives have torch's timeout."""
    import torch
    import torch.distributed as dist

    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.world_size)
    _choose_gpu(world.local_rank)


def _meet(timeout: float) -> tuple[Any, int, int]:
    """Return the ranks' store, this rank and the number of ranks.

    A thread connects, since torch waits without a limit for the first answer. torchrun's store may outlive a failed
    attempt, so each attempt has its own prefix.
    """
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    found: list[tuple[Any, int, int] | Exception] = []

    def connect() -> None:
        try:
            found.append(next(rendezvous("env://", timeout=timedelta(seconds=timeout))))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=connect, name="manyhop-connect", daemon=True)
    thread.start()
    thread.join(timeout + _ANSWER_S)
    outcome = found[0] if found else None
    if isinstance(outcome, tuple):
        store, rank, world_size = outcome
        return PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store), rank, world_size
    if outcome is not None and not isinstance(outcome, RuntimeError):
        raise outcome
    this, number, host, port = (os.environ[name] for name in _TORCHRUN)
    got = "no answer" if outcome is None else str(outcome).splitlines()[0]
    raise RankError(
        f"manyhop.init(): expected all {number} ranks to meet at {host}:{port} (MASTER_ADDR, MASTER_PORT) within "
        f"{timeout:g} s, got on rank {this}: {got}. Start all of them with the same address, and with a port that no "
        "other program uses."
    ) from outcome


def _choose_gpu(local_rank: int) -> None:
    """Select each rank's own GPU on its node, without starting CUDA, if it sees multiple."""
    import torch

    def choose() -> None:
        if local_rank < torch.cuda.device_count():
            torch.cuda.set_device(local_rank)

    if torch.cuda.is_available():
        torch.cuda._lazy_call(choose)  # type: ignore[no-untyped-call]  # at the latest when CUDA starts


def _launched(environ: Mapping[str, str]) -> bool:
    """Return whether torchrun, or a launcher that sets the same variables, has started this process."""
    missing = [name for name in _TORCHRUN if name not in environ]
    if missing and int(environ.get("WORLD_SIZE", 1)) > 1:
        raise InputError(
            f"Expected the variables {', '.join(_TORCHRUN)}, as torchrun sets them, got none called "
            f"{', '.join(missing)}. Start the script with torchrun."
        )
    return not missing


def _host() -> str:
    """Return the name of this machine (or container), with the kernel's identifier of its latest start."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"
