"""Compiles a minimal kernel to check triton, its speed and its cache."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
import triton.language as tl


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What :func:`compile_one` found."""

    seconds: float
    """From the call to the kernel's end."""
    folder: str
    """Folder of triton's cache, for all programs."""
    kept: int
    """Number of kernels in the cache."""
    writable: bool
    """Whether this process can write to it."""


@triton.jit  # type: ignore[untyped-decorator]
def _increment(numbers, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    tl.store(numbers + index, tl.load(numbers + index, mask=inside, other=0) + 1, mask=inside)


def compile_one(device: torch.device) -> Compiled:
    """Compile the kernel, whether or not it has been before, and run it. Raises any error of triton and compilers."""
    numbers = torch.zeros(1000, dtype=torch.int64, device=device)
    always, triton.knobs.compilation.always_compile = triton.knobs.compilation.always_compile, True
    try:
        begin = time.perf_counter()
        _increment[(8,)](numbers, 1000, BLOCK=128)
        right = bool((numbers == 1).all())  # waits for the kernel
        seconds = time.perf_counter() - begin
    finally:
        triton.knobs.compilation.always_compile = always
    if not right:
        raise RuntimeError("a kernel that adds 1 returned a wrong result")
    folder = Path(triton.knobs.cache.dir)
    kept = sum(1 for _ in folder.glob("*/*.cubin"))
    return Compiled(seconds=seconds, folder=str(folder), kept=kept, writable=_writable(folder))


def _writable(folder: Path) -> bool:
    while not folder.exists():
        folder = folder.parent
    return os.access(folder, os.W_OK)
