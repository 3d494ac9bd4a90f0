"""Which of the GPUs that a process sees is its own, where the user names none."""

from __future__ import annotations

import contextlib
import os
import warnings
import weakref
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from manyhop.ranks import cuda


def choose_gpu(*, data: int | None, bound: int | None, current: int, holding: Sequence[int]) -> int:
    """Return the number of the GPU that a process works on.

    A process that ``mp.spawn`` starts has GPU 0 as the current one until it calls ``torch.cuda.set_device``, although
    its model is on another. So another current GPU than 0 was chosen, and GPU 0 need not have been.

    Args:
        data: the GPU of the data; ``None``: they are in host memory.
        bound: the GPU that the process group was made for (``init_process_group(device_id=...)``); ``None``: for none.
        current: torch's current GPU.
        holding: the GPUs on which this process has tensors: those of its model.
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

    Args:
        tensors: the data of a loader.
    """
    data = next((tensor.device.index for tensor in tensors if tensor.is_cuda), None)
    if data is None and not cuda.initialized():
        return None
    holding = [k for k in range(torch.cuda.device_count()) if torch.cuda.memory_allocated(k) > 0]
    return torch.device(
        "cuda", choose_gpu(data=data, bound=_bound(), current=torch.cuda.current_device(), holding=holding)
    )


def on_gpu(device: torch.device) -> AbstractContextManager[Any]:
    """In the body, this GPU is torch's current one; nothing on a CPU, where kernels are interpreted."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def warn_if_shared(device: torch.device) -> None:
    """Warn, once per process group, where another rank has a loader on this GPU. Does not wait for other ranks."""
    import torch.distributed as dist

    if device.type != "cuda" or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    from torch.distributed.distributed_c10d import _get_default_store

    store: Any = _get_default_store()
    known = _asked.setdefault(store, set())
    if (os.getpid(), device.index) in known:
        return
    known.add((os.getpid(), device.index))
    with contextlib.suppress(RuntimeError, NotImplementedError):  # whoever holds the store has gone; it cannot compare
        other = first_rank(store, cuda.uuid_of(device), dist.get_rank())
        if other != dist.get_rank():
            warnings.warn(shared_gpu(dist.get_rank(), other, device), stacklevel=2)


def first_rank(store: Any, gpu: str, rank: int) -> int:
    """Return the rank that was the first one to name a GPU in the ranks' store: maybe this one.

    Args:
        store: of torch.distributed.
        gpu: what identifies the GPU on all nodes.
        rank: this one.
    """
    return int(store.compare_set(f"manyhop/gpu/{gpu}", "", str(rank)))


def shared_gpu(rank: int, other: int, device: torch.device) -> str:
    """Return the warning for two ranks that have the same GPU."""
    return (
        f"Ranks {other} and {rank} make their batches on the same GPU ({device} of rank {rank}). Call "
        "torch.cuda.set_device(local_rank) before anything uses a GPU, or pass device= to the loader."
    )


_asked: weakref.WeakKeyDictionary[Any, set[tuple[int, int | None]]] = weakref.WeakKeyDictionary()


def _bound() -> int | None:
    """The GPU that the default process group was made for."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    device = getattr(dist.group.WORLD, "bound_device_id", None)
    return device.index if device is not None and device.type == "cuda" else None
