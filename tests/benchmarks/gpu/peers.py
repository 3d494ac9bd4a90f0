"""Process groups, memory pools and tensors of the peers: RAPIDS' WholeGraph and cuGraph."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.common import import_quietly
from benchmarks.gpu.hardware import Ranks


def join_group(ranks: Ranks) -> None:
    """The process group that all peers ask for, also with one GPU; its address comes from the environment."""
    if not dist.is_initialized():
        backend = "nccl" if ranks.on_gpu else "gloo"
        dist.init_process_group(backend, rank=ranks.rank, world_size=ranks.size)


def start_wholegraph(ranks: Ranks) -> ModuleType:
    """``pylibwholegraph.torch``, ready for use."""
    wgth = import_quietly("pylibwholegraph.torch")
    join_group(ranks)
    import_quietly("pylibwholegraph.torch.initialize").init(ranks.rank, ranks.size, ranks.rank, ranks.size, "warn")
    return wgth


def start_cugraph(ranks: Ranks) -> None:
    """cuGraph's communicator, and one pool of RAPIDS' memory manager for cuGraph and CuPy, as its examples have it.

    The examples take managed memory; a pool in device memory is faster.
    """
    os.environ.setdefault("RAPIDS_NO_INITIALIZE", "1")
    os.environ.setdefault("LOCAL_WORLD_SIZE", str(ranks.size))
    rmm = import_quietly("rmm")
    rmm.reinitialize(
        devices=ranks.device.index, managed_memory=False, pool_allocator=True, initial_pool_size=1 << 30
    )  # grows; by default it would begin with half of the GPU
    cupy = import_quietly("cupy")
    cupy.cuda.Device(ranks.device.index).use()
    cupy.cuda.set_allocator(import_quietly("rmm.allocators.cupy").rmm_cupy_allocator)
    join_group(ranks)
    if ranks.size > 1:
        comms = import_quietly("pylibcugraph.comms")
        unique = [comms.cugraph_comms_create_unique_id() if ranks.rank == 0 else None]
        dist.broadcast_object_list(unique, src=0, device=ranks.device)
        comms.cugraph_comms_init(rank=ranks.rank, world_size=ranks.size, uid=unique[0], device=ranks.device.index)


def whole_tensor(
    wgth: ModuleType, memory: str, shape: list[int], dtype: torch.dtype, fill: Callable[[Tensor, int], None]
) -> Any:
    """A WholeMemory tensor of which each rank fills its part; ``fill(part, first row)``.

    Args:
        wgth: ``pylibwholegraph.torch``.
        memory: ``"continuous"``, ``"chunked"`` or ``"distributed"`` in device memory; ``"pinned"``: continuous in the
            host's.
        shape: of all parts together.
        dtype: of the entries.
        fill: is called with this rank's part as a tensor on the GPU, and the number of its first row.
    """
    comm = wgth.get_global_communicator()
    kind, place = ("continuous", "cpu") if memory == "pinned" else (memory, "cuda")
    tensor = wgth.create_wholememory_tensor(comm, kind, place, shape, dtype, None)
    part, first = tensor.get_local_tensor()
    fill(part, int(first))
    torch.cuda.synchronize()
    comm.barrier()
    return tensor
