"""Communicators of WholeMemory, made of the ranks of the run and ended with it; memory that a GPU has left for it.

The ids of WholeGraph's communicators travel through the store of the process group: WholeGraph does not look for ranks.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

import torch

from manyhop.errors import CapacityError, MissingExtraError, RankError
from manyhop.features.whole_memory.partition import Division
from manyhop.ranks import control, world
from manyhop.ranks.cuda import check_gpus
from manyhop.system.units import in_units

_SPARE = 64 << 20  # bytes that allocations of other kinds may need in the meantime
_COMMUNICATOR = 1 << 30  # NCCL's buffers: 772 MiB were seen, between two H200


def require_room(division: Division, rank: int, *, name: str, timeout: float) -> None:
    """Compare the needs of a tensor with the free memory. All ranks of the run call it, and all raise if one does."""
    need = division.bytes_of_ranks()[rank]
    facts = {"need": need, "free": _free_on_gpu(need + _SPARE)}
    every = control.exchange(f"room for {name}", facts, timeout=timeout)
    reason = shortage(division, [fact["need"] for fact in every], [fact["free"] for fact in every], name)
    if reason is not None:
        raise CapacityError(reason)


def require_communicator(title: str, *, timeout: float) -> None:
    """Require room for a communicator on every rank's GPU. All ranks of the run call it, and all raise if one does."""
    every = control.exchange(f"room for {title}", {"free": _free_on_gpu(_COMMUNICATOR)}, timeout=timeout)
    lacking = [rank for rank, fact in enumerate(every) if fact["free"] < _COMMUNICATOR]
    if lacking:
        free = min(every[rank]["free"] for rank in lacking)
        raise CapacityError(
            f"{title} needs {in_units(_COMMUNICATOR)} to connect the GPUs, but {in_units(free)} are free on the GPU of "
            f"{control.rank_names(lacking)}. Free memory there, or make WholeMemory before GPUs are filled."
        )


def require_contexts(ranks: Sequence[int], *, name: str, timeout: float) -> None:
    """Start CUDA, in this process, on the GPUs of other ranks of its node as well. All ranks of the run call it.

    Each process needs some hundred MB of each GPU. All ranks raise if one cannot have them.
    """
    here, reason = torch.cuda.current_device(), ""
    torch.cuda.empty_cache()  # other processes may need the memory that torch caches
    every = control.exchange(f"GPUs for {name}", {"gpu": here}, timeout=timeout)
    for gpu in sorted({every[rank]["gpu"] for rank in ranks}):
        try:
            torch.cuda.mem_get_info(gpu)
        except RuntimeError as error:
            reason = reason or f"on GPU {gpu} ({str(error).splitlines()[0]})"
    torch.cuda.set_device(here)  # also after an error
    every = control.exchange(f"CUDA for {name}", {"reason": reason}, timeout=timeout)
    failed = {rank: fact["reason"] for rank, fact in enumerate(every) if fact["reason"]}
    if failed:
        rank, reason = next(iter(failed.items()))
        raise CapacityError(
            f"{name}: rank {rank} cannot start CUDA {reason}. Each rank needs some hundred MB of every GPU of the node "
            "whose memory it reads. Free memory there, make loaders and WholeMemory before the GPUs are filled, or use "
            "kind='distributed' (placement='distributed')."
        )


def shortage(division: Division, need: Sequence[int], free: Sequence[int], name: str) -> str | None:
    """Return the text of an error, from the bytes that each rank allocates and has free; ``None`` if there is room."""
    for rank, (needed, there) in enumerate(zip(need, free, strict=True)):
        if needed > 0 and there < needed + _SPARE:
            return (
                f"{name} ({division.dtype} {list(division.shape)}, {in_units(division.nbytes)}, {division.kind} over "
                f"{division.num_ranks} ranks) needs {in_units(needed)} on the GPU of rank {rank}, where "
                f"{in_units(there)} are free. Free memory there (torch.cuda.empty_cache()), use more GPUs or a smaller "
                "dtype, or keep the tensor in memory of the host: placement='pinned'."
            )
    return None


def _free_on_gpu(wanted: int) -> int:
    """Return the free bytes; release memory that torch caches if they are fewer than ``wanted``."""
    free = torch.cuda.mem_get_info()[0]
    if free < wanted:
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
    return free


Scope = Literal["node", "all"]
"""The ranks that hold a tensor together: the ranks of each node, or all."""

_GRACE_SECONDS = 60.0  # that ranks may end after each other


@dataclass(eq=False)
class Communicator:
    """Ranks that hold tensors together."""

    ranks: tuple[int, ...]
    """Ranks of the run, ascending."""
    handle: Any
    """WholeGraph's own."""
    memories: dict[int, Any] = field(default_factory=dict)
    """WholeGraph's handles of the memory that is allocated, by number, oldest first; the same numbers on all ranks."""
    unused: set[int] = field(default_factory=set)
    """Numbers of memory that nothing on this rank uses any more."""
    made: int = 0
    """Number of allocations so far."""
    sees_gpus: bool = False
    """Whether CUDA has been started, in this process, on the GPUs of all these ranks that are on its node."""

    def add(self, handle: Any) -> int:
        """Record allocated memory; return its number."""
        self.made += 1
        self.memories[self.made] = handle
        return self.made

    def free(self, number: int) -> None:
        """Free memory. All ranks call it."""
        binding().free(self.memories.pop(number))
        self.unused.discard(number)

    def free_unused(self, *, timeout: float) -> None:
        """Free memory that nothing on any rank uses any more. All ranks of the run call it."""
        facts = {"unused": sorted(self.unused & self.memories.keys())}
        every = control.exchange("memory that nothing uses", facts, timeout=timeout)
        common = set.intersection(*(set(every[rank]["unused"]) for rank in self.ranks))
        if common:
            torch.cuda.synchronize()  # kernels that still read it; freeing waits for the other ranks
        for number in sorted(common):
            self.free(number)


_communicators: dict[Scope, Communicator] = {}


def binding() -> ModuleType:
    """Return WholeGraph's functions, loaded when first needed."""
    try:
        import pylibwholegraph.binding.wholememory_binding as wmb
    except ImportError as error:
        extra = "cu12" if (torch.version.cuda or "").startswith("12") else "cu13"
        raise MissingExtraError(f"pylibwholegraph-{extra}", extra, "Memory over multiple GPUs") from error
    return wmb  # type: ignore[no-any-return]


def communicator(scope: Scope, *, timeout: float) -> Communicator:
    """Return the communicator of this rank's scope, made when first requested. All ranks of the run call it."""
    wmb = binding()
    ours = world.init(timeout=timeout)
    if ours.num_nodes == 1:
        scope = "all"
    if scope in _communicators:
        return _communicators[scope]
    title = f"WholeMemory over {'each node' if scope == 'node' else 'all ranks'}"
    check_gpus(title, timeout=timeout)
    if not ours.is_alone:
        require_communicator(title, timeout=timeout)
    ranks = tuple(range(ours.world_size)) if scope == "all" else ours.local_ranks
    if not _communicators:
        wmb.init(0, wmb.WholeMemoryLogLevel.LevWarn)
        world.at_shutdown(_close)
    uid = wmb.create_unique_id() if ours.rank == ranks[0] else wmb.PyWholeMemoryUniqueID()
    text = bytes(memoryview(uid)).hex()
    every = control.exchange("WholeGraph's communicator", {"id": text}, timeout=timeout)
    memoryview(uid).cast("B")[:] = bytes.fromhex(every[ranks[0]]["id"])
    handle = wmb.create_communicator(uid, ranks.index(ours.rank), len(ranks))
    _communicators[scope] = Communicator(ranks, handle)
    return _communicators[scope]


def _close() -> None:
    """Free the remaining memory and end WholeGraph: ranks do so together, or, if one of them has failed, not at all."""
    left = list(_communicators.values())
    _communicators.clear()
    failing = getattr(sys, "last_exc", getattr(sys, "last_value", None)) is not None
    with contextlib.suppress(RankError):
        # A rank that fails does not wait: it notifies the others, and ends.
        grace = 0.0 if failing else _GRACE_SECONDS
        every = control.exchange("the end of WholeMemory", {"failing": failing}, timeout=grace)
        if any(fact["failing"] for fact in every):
            return
        wmb = binding()
        torch.cuda.synchronize()
        for each in left:
            for number in sorted(each.memories, reverse=True):
                each.free(number)
        for each in left:
            wmb.destroy_communicator(each.handle)
        wmb.finalize()
