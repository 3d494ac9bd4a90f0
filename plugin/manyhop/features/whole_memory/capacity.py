"""Is there room for a tensor? Asked before WholeGraph is, which ends the process where there is not."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from manyhop.errors import CapacityError
from manyhop.features.whole_memory.partition import Division
from manyhop.ranks import control
from manyhop.ranks.world import World
from manyhop.system.memory import available_memory
from manyhop.system.units import in_units

_SPARE = 64 << 20  # bytes that allocations of other kinds may need meanwhile
_COMMUNICATOR = 1 << 30  # NCCL's buffers: 772 MiB were seen, between two H200


def require_room(division: Division, ranks: Sequence[int], world: World, *, name: str, timeout: float) -> None:
    """Compare what a tensor needs with what is free. All ranks of the run call it, and all raise if one does.

    Args:
        division: of the tensor.
        ranks: which ranks (of the run) hold it together; those of this rank.
        world: who this rank is.
        name: of the tensor.
        timeout: seconds to wait for other ranks.

    Raises:
        CapacityError: naming the tensor, the sizes and what can be done.
    """
    need = division.bytes_of_ranks()[ranks.index(world.rank)]
    facts = {"need": need, "free": _free_bytes(division, need)}
    every = control.exchange(f"room for {name}", facts, timeout=timeout)
    reason = shortage(division, world, [fact["need"] for fact in every], [fact["free"] for fact in every], name)
    if reason is not None:
        raise CapacityError(reason)


def require_communicator(title: str, *, timeout: float) -> None:
    """See that every rank's GPU has room for a communicator. All ranks of the run call it, and all raise if one does.

    Raises:
        CapacityError: naming the ranks and what can be done.
    """
    every = control.exchange(f"room for {title}", {"free": _free_on_gpu(_COMMUNICATOR)}, timeout=timeout)
    lacking = [rank for rank, fact in enumerate(every) if fact["free"] < _COMMUNICATOR]
    if lacking:
        free = min(every[rank]["free"] for rank in lacking)
        raise CapacityError(
            f"{title} needs {in_units(_COMMUNICATOR)} to connect the GPUs, but {in_units(free)} are free on that of "
            f"{control.rank_names(lacking)}. Free memory there, or make WholeMemory before GPUs are filled."
        )


def require_contexts(ranks: Sequence[int], *, name: str, timeout: float) -> None:
    """Have CUDA started, in this process, on the GPUs of other ranks of its node, too. All ranks of the run call it.

    It takes some hundred MB of each, for each process. All ranks raise if one cannot have them.

    Args:
        ranks: those of this node that hold a tensor together.
        name: of the tensor.
        timeout: seconds to wait for other ranks.

    Raises:
        CapacityError: naming the GPU and what can be done.
    """
    here, reason = torch.cuda.current_device(), ""
    torch.cuda.empty_cache()  # what torch keeps for later allocations may be what others lack
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
            f"{name}: rank {rank} cannot start CUDA {reason}. Each rank takes some hundred MB of every GPU of the node "
            "whose memory it reads. Free memory there, make loaders and WholeMemory before the GPUs are filled, or use "
            "kind='distributed' (placement='distributed')."
        )


def shortage(
    division: Division, world: World, need: Sequence[int], free: Sequence[int | None], name: str
) -> str | None:
    """What is wrong, in words; ``None`` where there is room.

    Args:
        division: of the tensor.
        world: which ranks share the memory of a host.
        need: ``[world_size]`` bytes that each rank allocates.
        free: ``[world_size]`` bytes that each rank finds free, of its GPU or of its host; ``None``: unknown.
        name: of the tensor.
    """
    if division.location == "cuda":
        places = [(f"on the GPU of rank {rank}", [rank]) for rank in range(world.world_size)]
    else:
        places = [
            (f"on the host of {control.rank_names(world.ranks_of(node))}", list(world.ranks_of(node)))
            for node in range(world.num_nodes)
        ]
    for place, ranks in places:
        there = min((f for f in (free[rank] for rank in ranks) if f is not None), default=None)
        needed = sum(need[rank] for rank in ranks)
        if there is not None and needed > 0 and needed + _SPARE > there:
            return (
                f"{name} ({division.dtype} {list(division.shape)}, {in_units(division.nbytes)}, {division.kind} over "
                f"{division.num_ranks} ranks, {division.location}) needs {in_units(needed)} {place}, where "
                f"{in_units(there)} are free. {_REMEDIES[division.location]}"
            )
    return None


_REMEDIES = {
    "cuda": "Free memory there (torch.cuda.empty_cache()), use more GPUs, keep the tensor in pinned memory of the host "
    "(location='cpu'), or in a smaller dtype.",
    "cpu": "Free memory there, use more nodes (kind='distributed'), leave the tensor in its file, or keep it in a "
    "smaller dtype.",
}


def _free_bytes(division: Division, need: int) -> int | None:
    if division.location == "cpu":
        return available_memory()
    return _free_on_gpu(need + _SPARE)


def _free_on_gpu(wanted: int) -> int:
    """Bytes, with those that torch keeps for later allocations where there would be too few."""
    free = torch.cuda.mem_get_info()[0]
    if free < wanted:
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
    return free
