"""Times and peak memory of work on a GPU, of the slowest of several ranks."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist


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
        """Wait for the GPU."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def meet(self) -> None:
        """Wait for the GPU and for the other ranks."""
        self.finish()
        self.slowest(0.0)

    def slowest(self, value: float) -> float:
        """The largest value of all ranks."""
        return self._reduce(value, dist.ReduceOp.MAX)

    def mean(self, value: float) -> float:
        """The mean over the ranks."""
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
