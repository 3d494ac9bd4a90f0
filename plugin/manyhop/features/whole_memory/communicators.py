"""WholeGraph's communicators, derived from the ranks of the run; ended with it.

WholeGraph is not asked to find the ranks out itself: the ids of its communicators travel through the store of the
process group that the ranks have already.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

import torch

from manyhop.errors import InputError, MissingExtraError, RankError
from manyhop.features.whole_memory.capacity import require_communicator
from manyhop.ranks import control, world
from manyhop.ranks.cuda import check_gpus

Scope = Literal["node", "all"]
"""Which ranks hold a tensor together: those of each node, or all."""

_GRACE_SECONDS = 60.0  # that ranks may end after each other


@dataclass(eq=False)
class Communicator:
    """Ranks that hold tensors together."""

    ranks: tuple[int, ...]
    """Which ranks of the run, ascending."""
    handle: Any
    """WholeGraph's own."""
    memories: dict[int, Any] = field(default_factory=dict)
    """WholeGraph's handles of the memory that is allocated, by number, oldest first; the same numbers on all ranks."""
    unused: set[int] = field(default_factory=set)
    """Numbers of memory that nothing on this rank uses any more."""
    made: int = 0
    """How many there have been."""
    sees_gpus: bool = False
    """Whether CUDA has been started, in this process, on the GPUs of all these ranks that are on its node."""

    def add(self, handle: Any) -> int:
        """Note memory that has been allocated; its number."""
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
    """WholeGraph's own functions, loaded when first needed.

    Raises:
        MissingExtraError: pylibwholegraph is not installed.
    """
    try:
        import pylibwholegraph.binding.wholememory_binding as wmb
    except ImportError as error:
        extra = "cu12" if (torch.version.cuda or "").startswith("12") else "cu13"
        raise MissingExtraError(f"pylibwholegraph-{extra}", extra, "Memory over several GPUs") from error
    return wmb  # type: ignore[no-any-return]


def communicator(scope: Scope, *, timeout: float) -> Communicator:
    """The communicator of this rank's scope, made when first asked for. All ranks of the run call it.

    Raises:
        CapacityError: there is no room for it on a GPU.
        InputError: no GPU, or several ranks with the same GPU.
        MissingExtraError: pylibwholegraph is not installed.
        RankError: ranks did not come in time.
    """
    if scope not in ("node", "all"):
        raise InputError(f"Expected a scope of node, all, got {scope!r}.")
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
    """Free what is left and end WholeGraph: ranks do so together, or, if one of them has failed, not at all."""
    left = list(_communicators.values())
    _communicators.clear()
    failing = getattr(sys, "last_exc", getattr(sys, "last_value", None)) is not None
    with contextlib.suppress(RankError):
        # A rank that fails does not wait: it notifies the others, and goes.
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
