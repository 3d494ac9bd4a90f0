"""The handle by which cuGraph works on this rank's GPU together with the other ranks; ended with the run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from manyhop.ranks import control, world
from manyhop.ranks.cuda import check_gpus
from manyhop.system.allocator import share_memory_with_rapids
from manyhop_cugraph import binding


@dataclass(eq=False)
class Handle:
    """cuGraph's resources on one rank."""

    resources: Any
    """``pylibcugraph.ResourceHandle``."""
    stream: torch.cuda.Stream | None
    """On which cuGraph works; ``None``: the stand-in of tests, on the CPU."""
    world_size: int
    """How many GPUs work together."""
    keeps: tuple[Any, ...]
    """What has to outlive the handle: RAFT's own, and the NCCL communicator."""


_handle: Handle | None = None


def handle(*, timeout: float) -> Handle:
    """Return the handle of this rank, made when first asked for. All ranks of the run call it.

    Raises:
        InputError: no GPU, or several ranks with the same GPU.
        MissingExtraError: pylibcugraph or, for several ranks, raft-dask is not installed.
        RankError: ranks did not come in time.
    """
    global _handle
    if _handle is not None:
        return _handle
    ours = world.init(timeout=timeout)
    plc = binding.pylibcugraph()
    device = check_gpus("cuGraph", timeout=timeout)
    share_memory_with_rapids()
    stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]  # the host waits for its kernels
    if ours.is_alone:
        raft, nccl = _raft_handle(stream), None
    else:
        raft, nccl = _joined(plc, ours, stream, timeout)
    _handle = Handle(plc.ResourceHandle(raft.getHandle()), stream, ours.world_size, (raft, nccl))
    world.at_shutdown(_close)
    return _handle


def _raft_handle(stream: torch.cuda.Stream) -> Any:
    """Return a handle of RAFT's whose work is on a stream of torch's."""
    from pylibraft.common import Handle as RaftHandle

    return RaftHandle(stream=stream.cuda_stream)


def _joined(plc: Any, ours: world.World, stream: torch.cuda.Stream, timeout: float) -> tuple[Any, Any]:
    """Return a handle that joins all ranks, and its NCCL communicator, which no one else uses."""
    there = control.attempt("cuGraph's communicator", binding.communication, timeout=timeout)
    facts = {"id": there.nccl.get_unique_id().hex() if ours.rank == 0 else ""}
    uid = control.exchange("cuGraph's communicator", facts, timeout=timeout)[0]["id"]
    nccl = there.nccl()
    nccl.init(ours.world_size, bytes.fromhex(uid), ours.rank)
    raft = _raft_handle(stream)
    there.inject(raft, nccl, ours.world_size, ours.rank, False)
    plc.comms.init_subcomms(raft, num_rows(ours.world_size))
    return raft, nccl


def num_rows(world_size: int) -> int:
    """Return the number of rows of the most square grid of so many GPUs, over which cuGraph cuts the adjacency matrix.

    Args:
        world_size: number of GPUs.
    """
    return next(rows for rows in range(math.isqrt(world_size), 0, -1) if world_size % rows == 0)


def _close() -> None:
    """Forget the handle: graphs that still exist keep it. Its communicator ends with the process."""
    global _handle
    _handle = None
