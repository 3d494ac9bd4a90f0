"""What the hardware can do at most, measured in the same run: the figures beside all others."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np
import torch

from benchmarks.gpu.job import Job, Row, Sink
from benchmarks.gpu.timing import Ranks

COPY, READS, PCIE, PEER = "copy", "random reads", "PCIe", "NVLink"
"""Limits: bytes copied per second in device memory, random 8-byte reads per second, bytes per second from pinned memory
to a GPU, bytes per second read from another GPU; the last two with all GPUs at once."""

_ALREADY = 704  # CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED


def limits(job: Job, ranks: Ranks, sink: Sink) -> None:
    """Measure all that is there. One process for all GPUs."""
    _copy(job, ranks, sink)
    _random_reads(job, ranks, sink)
    if ranks.on_gpu:
        _pcie(job, ranks, sink)
    if job.gpus > 1:
        _peer(job, ranks, sink)


def limit_seconds(work: Mapping[str, float], rows: Mapping[str, Row]) -> float | None:
    """Least seconds that some work takes, one kind after the other; ``None`` where a limit was not measured."""
    if not work or any(kind not in rows for kind in work):
        return None
    return sum(amount / rows[kind].extra["per_s"] for kind, amount in work.items())


def _add(job: Job, sink: Sink, name: str, seconds: list[float], amount: float) -> None:
    extra = {"per_s": amount / float(np.median(seconds))}
    sink.add(Row(part="limits", workload=name, name="hardware", gpus=job.gpus, seconds=seconds, extra=extra))


def _copy(job: Job, ranks: Ranks, sink: Sink) -> None:
    source = torch.zeros(job.gather_table // 8, dtype=torch.int64, device=ranks.device)
    out = torch.empty_like(source)
    seconds = ranks.rounds(lambda: out.copy_(source), job.rounds)
    _add(job, sink, COPY, seconds, 8 * source.numel())


def _random_reads(job: Job, ranks: Ranks, sink: Sink) -> None:
    from benchmarks.gpu.limit_kernels import random_reads

    entries = 1 << ((job.gather_table // 8).bit_length() - 1)
    table = torch.zeros(entries, dtype=torch.int64, device=ranks.device)
    block, repeats = 256, 8
    programs = (1 << 18) if ranks.on_gpu else 4
    out = torch.empty(programs * block, dtype=torch.int64, device=ranks.device)
    grid = (programs,)
    seconds = ranks.rounds(lambda: random_reads[grid](table, out, entries - 1, block, repeats), job.rounds)
    _add(job, sink, READS, seconds, programs * block * repeats)


def _pcie(job: Job, ranks: Ranks, sink: Sink) -> None:
    size = min(job.gather_table, 1 << 30)
    pairs = []
    for gpu in range(job.gpus):
        pinned = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
        pairs.append((pinned, torch.empty(size, dtype=torch.uint8, device=f"cuda:{gpu}")))

    def run() -> None:
        for pinned, out in pairs:
            out.copy_(pinned, non_blocking=True)
        for gpu in range(job.gpus):
            torch.cuda.synchronize(gpu)

    _add(job, sink, PCIE, ranks.rounds(run, job.rounds), size)


def _peer(job: Job, ranks: Ranks, sink: Sink) -> None:
    """Every GPU reads from the next one, all at once."""
    from benchmarks.gpu.limit_kernels import copy_words

    words = min(job.gather_table, 1 << 30) // 8
    source = [torch.zeros(words, dtype=torch.int64, device=f"cuda:{gpu}") for gpu in range(job.gpus)]
    out = [torch.empty_like(tensor) for tensor in source]
    _let_read(job.gpus)

    def run() -> None:
        for gpu in range(job.gpus):
            with torch.cuda.device(gpu):
                neighbour = source[(gpu + 1) % job.gpus]
                copy_words[(132 * 8,)](neighbour.data_ptr(), out[gpu].data_ptr(), words, 2048)
        for gpu in range(job.gpus):
            torch.cuda.synchronize(gpu)

    _add(job, sink, PEER, ranks.rounds(run, job.rounds, warm_up=2), 8 * words)


def _let_read(gpus: int) -> None:
    """Let each GPU read memory of the next one; torch's copies between GPUs do not need it."""
    cuda = ctypes.CDLL("libcuda.so.1")  # two calls: torch below 2.10 does not bring cuda-bindings
    contexts = []
    for gpu in range(gpus):
        context = ctypes.c_void_p()
        with torch.cuda.device(gpu):
            cuda.cuCtxGetCurrent(ctypes.byref(context))
        contexts.append(context)
    for gpu in range(gpus):
        with torch.cuda.device(gpu):
            status = cuda.cuCtxEnablePeerAccess(contexts[(gpu + 1) % gpus], 0)
        if status not in (0, _ALREADY):
            raise RuntimeError(f"GPU {gpu} cannot read the memory of GPU {(gpu + 1) % gpus}: CUDA's error {status}")
