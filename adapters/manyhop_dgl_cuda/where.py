"""Which devices have graphs on torch tensors."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_cpu_too = False


@contextmanager
def graphs_of_cpu_too() -> Iterator[None]:
    """Put graphs on the CPU on torch tensors, too. For tests: a CPU then stands for a GPU."""
    global _cpu_too
    before, _cpu_too = _cpu_too, True
    try:
        yield
    finally:
        _cpu_too = before


def on_torch(device: torch.device) -> bool:
    """Whether graphs on a device are on torch tensors: on CUDA, if the installed DGL is a build for CPUs."""
    return (device.type == "cuda" and not has_cuda()) or (device.type == "cpu" and _cpu_too)


@functools.lru_cache(maxsize=1)
def has_cuda() -> bool:
    """Whether the installed DGL is a build with CUDA. DGL has been imported."""
    return bool(sys.modules["dgl.ndarray"].gpu(0).exist)
