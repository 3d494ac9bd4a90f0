"""What the hardware can do at most, and how work on it is timed: on the slowest of several ranks."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import triton
import triton.language as tl

from benchmarks.gpu.job import Job, Row, Sink


@dataclass(frozen=True)
class Ranks:
    """The processes of one job: one per GPU."""

    rank: int
    size: int
    device: torch.device

    @property
    def on_gpu(self) -> bool:
        """Whether there is a GPU; without one only the flow can be tried out."""
        return self.device.type == "cuda"

    def finish(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def meet(self) -> None:
        """Wait for the GPU and for the other ranks."""
        self.finish()
        self.slowest(0.0)

    def slowest(self, value: float) -> float:
        return self._reduce(value, dist.ReduceOp.MAX)

    def mean(self, value: float) -> float:
        return self._reduce(value, dist.ReduceOp.SUM) / self.size

    def _reduce(self, value: float, op: dist.ReduceOp.RedOpType) -> float:
        if self.size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op)
        return float(tensor)

    def seconds(self, run: Callable[[], object]) -> float:
        """How long it takes until the GPU is done, on the slowest rank; all begin together."""
        self.meet()
        began = time.perf_counter()
        run()
        self.finish()
        return self.slowest(time.perf_counter() - began)

    def gpu_seconds(self, run: Callable[[], object]) -> float:
        """How long the GPU takes for what is enqueued while it is held up, so that it never waits for the host; on the
        slowest rank. ``run`` must not wait for the GPU, nor enqueue more than 1000 kernels.
        """
        if not self.on_gpu:
            return self.seconds(run)
        seconds = []
        for _ in range(3):
            self.meet()
            torch.cuda._sleep(100_000_000)  # type: ignore[no-untyped-call]  # of torch; about 50 ms
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            began.record()
            run()
            ended.record()
            self.finish()
            seconds.append(began.elapsed_time(ended) / 1e3)
        return self.slowest(sorted(seconds)[1])

    def rounds(self, run: Callable[[], object], rounds: int, warm_up: int = 1) -> list[float]:
        """Seconds of each round, after rounds that do not count."""
        for _ in range(warm_up):
            run()
        return [self.seconds(run) for _ in range(rounds)]


class PeakMemory:
    """Memory in use on this GPU, by whatever allocator, beyond what an idle process takes."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._idle = self._used()

    def _used(self) -> int:
        if not self._ranks.on_gpu:
            return 0
        free, total = torch.cuda.mem_get_info(self._ranks.device)
        return total - free

    def now(self) -> float:
        """Bytes in use, on the rank that uses most; what allocators keep for themselves counts."""
        return self._ranks.slowest(float(self._used() - self._idle))

    def peak(self, run: Callable[[], object]) -> float:
        """The most bytes in use while something runs, looked at every millisecond (which takes time from it)."""
        most = [self._used()]
        done = threading.Event()

        def look() -> None:
            while not done.wait(0.001):
                most[0] = max(most[0], self._used())

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            run()
            self._ranks.finish()
        finally:
            done.set()
            watcher.join()
        return self._ranks.slowest(float(max(most[0], self._used()) - self._idle))


def tidy(ranks: Ranks) -> None:
    """Give back the memory that nothing uses any more."""
    gc.collect()
    if ranks.on_gpu:
        torch.cuda.empty_cache()


@triton.jit
def random_reads(table, out, mask, B: tl.constexpr, R: tl.constexpr):
    """R independent reads of 8 bytes per thread, at positions in [0, mask] that nothing can foresee."""
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    total = tl.zeros([B], tl.int64)
    for r in tl.static_range(R):
        x = i * R + r
        x = (x ^ (x >> 15)) * 0x2C1B3C6D
        x = (x ^ (x >> 12)) * 0x297A2D39
        x = x ^ (x >> 15)
        total += tl.load(table + (x & mask))
    tl.store(out + i, total)


@triton.jit(do_not_specialize=["source", "out", "n"])
def copy_words(source, out, n, B: tl.constexpr):
    """n words of 8 bytes, in order, from one address to another: triton takes no tensors of other GPUs."""
    a, b = source.to(tl.pointer_type(tl.int64)), out.to(tl.pointer_type(tl.int64))
    for t in range(tl.program_id(0), tl.cdiv(n, B), tl.num_programs(0)):
        i = t.to(tl.int64) * B + tl.arange(0, B)
        tl.store(b + i, tl.load(a + i, mask=i < n, other=0), mask=i < n)


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
    entries = 1 << ((job.gather_table // 8).bit_length() - 1)
    table = torch.zeros(entries, dtype=torch.int64, device=ranks.device)
    block, repeats, programs = 256, 8, (1 << 18) if ranks.on_gpu else 4
    out = torch.empty(programs * block, dtype=torch.int64, device=ranks.device)
    seconds = ranks.rounds(lambda: random_reads[(programs,)](table, out, entries - 1, block, repeats), job.rounds)
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
