"""Cores of the threads of a loader."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import dgl
import torch

from manyhop.arguments import cpu_cores
from manyhop.errors import InputError


class WorkerInit:
    """Called in each thread: DGL's own operators use one core in it, then the user's function is called."""

    def __init__(self, func: Callable[[int], object] | None) -> None:
        self.func = func

    def __call__(self, worker_id: int) -> None:
        dgl.utils.set_num_threads(1)
        if self.func is not None:
            self.func(worker_id)


def _choose_cores(
    num_workers: int, loader_cores: Sequence[int] | None, compute_cores: Sequence[int] | None
) -> tuple[list[int], list[int]]:
    """Return one core per thread, and the cores of the caller."""
    if num_workers == 0:
        raise InputError(
            "Expected num_workers of at least 1 for enable_cpu_affinity(), got 0: there is nothing to bind."
        )
    if not hasattr(os, "sched_setaffinity"):
        raise InputError("Threads cannot be bound to cores on this system: leave enable_cpu_affinity out.")
    available = sorted(os.sched_getaffinity(0))
    chosen = []
    for name, given in (("loader_cores", loader_cores), ("compute_cores", compute_cores)):
        chosen.append(cores := cpu_cores(name, () if given is None else given))
        if not set(cores) <= set(available):
            raise InputError(f"Expected {name} out of the cores of this process, {available}, got {cores}.")
    threads, compute = chosen
    threads = threads or [core for core in available if core not in compute][:num_workers]
    if len(threads) != num_workers:
        raise InputError(
            f"Expected one core for each of {num_workers} workers, got {threads}. Use fewer workers, or name "
            "loader_cores."
        )
    return threads, compute or [core for core in available if core not in threads] or available


class CoreControl:
    """Select the cores of a loader's threads and of its caller."""

    device: torch.device
    num_workers: int
    worker_init_fn: Any
    cpu_affinity_enabled: bool

    @contextmanager
    def enable_cpu_affinity(
        self,
        loader_cores: Sequence[int] | None = None,
        compute_cores: Sequence[int] | None = None,
        verbose: bool = True,
    ) -> Iterator[None]:
        """Bind the loader's threads to one core each in the body, and the caller to the others.

        Args:
            loader_cores: one core per thread; default: the first cores of the process.
            compute_cores: cores of the caller, and the number of torch's threads; default: the rest.
            verbose: print the chosen cores.

        Raises:
            InputError: cores that the process may not use, or fewer than threads.
        """
        if self.device.type != "cpu":
            yield
            return
        own, compute = _choose_cores(self.num_workers, loader_cores, compute_cores)
        before, init, threads = os.sched_getaffinity(0), self.worker_init_fn, torch.get_num_threads()
        if verbose:
            print(f"{self.num_workers} threads of the loader on cores {own}, others on {compute}")

        def bind(worker_id: int) -> None:
            os.sched_setaffinity(0, {own[worker_id]})
            init(worker_id)

        try:
            self.worker_init_fn, self.cpu_affinity_enabled = WorkerInit(bind), True
            os.sched_setaffinity(0, compute)
            torch.set_num_threads(len(compute))
            yield
        finally:
            os.sched_setaffinity(0, before)
            torch.set_num_threads(threads)
            self.worker_init_fn, self.cpu_affinity_enabled = init, False
