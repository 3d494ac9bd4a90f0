"""The GPU that a process uses by default."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from manyhop.ranks import cuda


def choose_gpu(*, data: int | None, bound: int | None, current: int, holding: Sequence[int]) -> int:
    """Return the number of the GPU that a process works on.

    In a process of ``mp.spawn``, GPU 0 is current until ``torch.cuda.set_device`` is called, even if the model is on a
    different GPU. So a current GPU other than 0 was chosen by the user, and GPU 0 may not have been.

    Args:
        data: GPU of the data; ``None``: host memory.
        bound: GPU of the process group (``init_process_group(device_id=...)``); ``None``: none.
        current: torch's current GPU.
        holding: GPUs on which this process has tensors, such as its model.
    """
    if data is not None:
        return data
    if bound is not None:
        return bound
    if current == 0 and len(holding) == 1:
        return holding[0]
    return current


def own_gpu(tensors: Iterable[Tensor] = ()) -> torch.device | None:
    """Return the GPU that this process works on; ``None``: it uses none so far. Does not communicate.

    ``tensors`` are the data of a loader.
    """
    data = next((tensor.device.index for tensor in tensors if tensor.is_cuda), None)
    if data is None and not cuda.initialized():
        return None
    holding = [k for k in range(torch.cuda.device_count()) if torch.cuda.memory_allocated(k) > 0]
    return torch.device(
        "cuda", choose_gpu(data=data, bound=_bound(), current=torch.cuda.current_device(), holding=holding)
    )


def on_gpu(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which this GPU is torch's current one; on a CPU (interpreted kernels), it has no effect."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def warn_if_shared(device: torch.device) -> None:
    """Warn if another rank has a loader on this GPU. Does not wait for other ranks."""
    import torch.distributed as dist

    if device.type != "cuda" or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    from torch.distributed.distributed_c10d import _get_default_store

    rank, other = dist.get_rank(), dist.get_rank()
    with contextlib.suppress(RuntimeError, NotImplementedError):  # the store's process has ended, or cannot compare
        key = f"manyhop/gpu/{cuda.uuid_of(device)}"  # unique over all nodes
        other = int(_get_default_store().compare_set(key, "", str(rank)))
    if other != rank:
        warnings.warn(
            f"Ranks {other} and {rank} make their batches on the same GPU ({device} of rank {rank}). Call "
            "torch.cuda.set_device(local_rank) before anything uses a GPU, or pass device= to the loader.",
            stacklevel=2,
        )


def _bound() -> int | None:
    """Return the GPU of the default process group."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    device = getattr(dist.group.WORLD, "bound_device_id", None)
    return device.index if device is not None and device.type == "cuda" else None
