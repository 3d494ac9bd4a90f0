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


class _Bound:
    """Run a function in a thread that is bound to a core."""

    def __init__(self, before: Callable[[int], object], cores: list[int]) -> None:
        self.before, self.cores = before, cores

    def __call__(self, worker_id: int) -> None:
        os.sched_setaffinity(0, {self.cores[worker_id]})
        self.before(worker_id)


@contextmanager
def _bound(
    loader: CoreControl, loader_cores: Sequence[int] | None, compute_cores: Sequence[int] | None
) -> Iterator[list[int]]:
    """Bind the loader's threads and the caller to separate cores in the body; yield the caller's cores."""
    if loader.num_workers == 0:
        raise InputError(
            "Expected num_workers of at least 1 for enable_cpu_affinity(), got 0: there is nothing to bind."
        )
    if not hasattr(os, "sched_setaffinity"):
        raise InputError("Threads cannot be bound to cores on this system: leave enable_cpu_affinity out.")
    loader_cores = cpu_cores("loader_cores", () if loader_cores is None else loader_cores)
    compute_cores = cpu_cores("compute_cores", () if compute_cores is None else compute_cores)
    before = sorted(os.sched_getaffinity(0))
    for name, cores in (("loader_cores", loader_cores), ("compute_cores", compute_cores)):
        if not set(cores) <= set(before):
            raise InputError(f"Expected {name} out of the cores of this process, {before}, got {cores}.")
    if loader_cores and len(loader_cores) != loader.num_workers:
        raise InputError(f"Expected one of loader_cores for each of {loader.num_workers} workers, got {loader_cores}.")
    if not loader_cores:
        free = [core for core in before if core not in compute_cores]
        if len(free) < loader.num_workers:
            raise InputError(
                f"Expected as many cores as workers, got {len(free)} for num_workers={loader.num_workers}. Use fewer "
                "workers, or name loader_cores."
            )
        loader_cores = free[: loader.num_workers]
    compute = compute_cores or [core for core in before if core not in loader_cores] or before
    init, threads = loader.worker_init_fn, torch.get_num_threads()
    assert init is not None
    try:
        loader.worker_init_fn = _Bound(init, loader_cores)
        os.sched_setaffinity(0, compute)
        torch.set_num_threads(len(compute))
        yield compute
    finally:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)
        loader.worker_init_fn = init


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
        """Bind the loader's threads to their own cores in the body, and the caller to the others.

        Args:
            loader_cores: one core per thread; default: the first cores of the process.
            compute_cores: cores of the caller, and the number of torch's threads; default: the rest.
            verbose: print which they are.

        Raises:
            InputError: cores that the process may not use, or fewer than threads.
        """
        if self.device.type != "cpu":
            yield
            return
        with _bound(self, loader_cores, compute_cores) as compute:
            self.cpu_affinity_enabled = True
            if verbose:
                cores = self.worker_init_fn.cores
                print(f"{self.num_workers} threads of the loader on cores {cores}, others on {compute}")
            try:
                yield
            finally:
                self.cpu_affinity_enabled = False
