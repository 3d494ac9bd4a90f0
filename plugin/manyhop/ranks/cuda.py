"""Facts about the GPUs of this process and of the other ranks. Importing this module starts no GPU."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from manyhop.errors import InputError
from manyhop.memory.placement import RESERVE, Hardware
from manyhop.ranks import control, world
from manyhop.system import nvml, triton_compiler
from manyhop.system.allocator import cuda_started
from manyhop.system.memory import available_memory

if TYPE_CHECKING:
    import torch

_UNKNOWN = 1 << 62  # bytes: reading reports if it was too much


def initialized() -> bool:
    """Return whether this process has used a GPU through torch. Has no side effects."""
    return cuda_started()


def gpus() -> tuple[nvml.GPU, ...]:
    """Return the GPUs that this process sees, from the driver, without starting one."""
    driver = nvml.driver()
    return () if driver is None else nvml.visible(driver.gpus)


@functools.cache
def in_reach() -> bool:
    """Return whether this process sees a GPU and can compile for it. Has no side effects."""
    return bool(gpus()) and triton_compiler.usable()


def free_memory(device: torch.device | int) -> int:
    """Return the bytes that this process can allocate on its GPU, unused memory of torch's allocator included."""
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + kept)


def has_wholegraph() -> bool:
    """Return whether pylibwholegraph is installed. Does not import it."""
    return importlib.util.find_spec("pylibwholegraph") is not None


def has_cugraph() -> bool:
    """Return whether pylibcugraph and raft-dask, which connects its GPUs, are installed. Imports neither."""
    return all(importlib.util.find_spec(name) is not None for name in ("pylibcugraph", "raft_dask", "cupy"))


def facts(device: torch.device | int) -> dict[str, Any]:
    """Return the facts about this rank's GPU that other ranks need, as plain values."""
    import torch

    here = torch.device(device).index
    here = torch.cuda.current_device() if here is None else here
    seen = {uuid_of(k): k for k in range(torch.cuda.device_count())}
    peers = [name for name, k in seen.items() if k != here and torch.cuda.can_device_access_peer(here, k)]
    driver = nvml.driver()  # lists all GPUs, also if CUDA_VISIBLE_DEVICES hides those of other ranks
    known = () if driver is None else driver.gpus
    uuid = uuid_of(here)
    peers += [name for gpu in known if gpu.uuid == uuid for name in gpu.peers if name not in seen]
    return {
        "gpu": uuid,
        "gpu_memory": free_memory(device),
        "host_memory": available_memory() or _UNKNOWN,
        "peers": peers,
        "wholegraph": has_wholegraph(),
        "cugraph": has_cugraph(),
    }


def combine(every: Sequence[dict[str, Any]], ranks: world.World, *, together: bool) -> Hardware:
    """Return the hardware that all ranks have: the minimum over the facts of each rank.

    Raises:
        InputError: two ranks of a node have the same GPU.
    """
    check_own_gpus([one["gpu"] for one in every], ranks)
    peers = True
    for node in range(ranks.num_nodes):
        local = [every[rank] for rank in ranks.ranks_of(node)]
        names = {one["gpu"] for one in local}
        peers &= all(names <= {one["gpu"], *one["peers"]} for one in local)
    return Hardware(
        gpu_memory=max(1, min(one["gpu_memory"] for one in every)),
        host_memory=max(1, min(one["host_memory"] for one in every)),
        gpus_per_node=max(len(ranks.ranks_of(node)) for node in range(ranks.num_nodes)),
        num_nodes=ranks.num_nodes,
        pinnable=max(0, min(one["pinnable"] for one in every)),
        peer_access=peers,
        wholegraph=all(one["wholegraph"] for one in every),
        cugraph=all(one["cugraph"] for one in every),
        together=together,
    )


def hardware(
    device: torch.device | int, *, together: bool, timeout: float, in_memory: int = 0, pinned: int = 0
) -> Hardware:
    """Return the hardware that a placement can use: of this rank, or of all ranks ``together``.

    A share of a node's memory is never page-locked. ``ulimit -l`` does not limit CUDA. If the driver has a limit,
    locking fails.

    Args:
        together: whether all ranks of the run call this.
        in_memory: bytes of the data to place that are in the node's memory, but not page-locked.
        pinned: bytes of the data to place that are page-locked.

    Raises:
        RankError: ranks are late.
        InputError: ranks share a GPU.
    """
    mine = facts(device)
    if not together:
        # Each rank of the node decides alone, so each may use only its part of the node's memory.
        mine["host_memory"] //= world.current().local_world_size
    mine["pinnable"] = int((1 - RESERVE) * (mine["host_memory"] + in_memory)) + pinned
    if not together:
        return combine([mine], world.World(0, (0,)), together=False)
    ranks = world.init()
    return combine(control.exchange("the placement of a loader", mine, timeout=timeout), ranks, together=True)


def uuid_of(device: torch.device | int) -> str:
    """Return the driver's identifier of a GPU, unique over all nodes."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def check_gpus(title: str, *, timeout: float) -> torch.device:
    """Return the GPU of this rank: torch's current one. All ranks call it.

    Raises:
        InputError: there is no GPU, or ranks share one.
        RankError: ranks are late.
    """
    import torch

    there = torch.cuda.is_available()
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid) if there else ""
    every = control.exchange(f"GPUs for {title}", {"gpu": uuid}, timeout=timeout)
    check_own_gpus([fact["gpu"] for fact in every], world.init())
    return torch.device("cuda", torch.cuda.current_device())


def check_own_gpus(gpus: Sequence[str], ranks: world.World) -> None:
    """Raise InputError if ranks have no GPU, or ranks of a node share one.

    Args:
        gpus: ``[world_size]`` identifiers of the ranks' GPUs, maybe equal on different nodes, as in virtual machines;
            an empty one stands for none.
    """
    for rank, gpu in enumerate(gpus):
        same = [other for other in ranks.ranks_of(ranks.nodes[rank]) if gpus[other] == gpu]
        if not gpu:
            raise InputError(
                f"Expected a GPU for every rank, got none for {control.rank_names(same)}. Use a machine with GPUs."
            )
        if len(same) > 1:
            raise InputError(
                f"Expected a GPU of its own for every rank, got the same one for {control.rank_names(same)}. Start as "
                "many ranks on a node as it has GPUs (torchrun --nproc-per-node), and call "
                "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything else uses a GPU."
            )
