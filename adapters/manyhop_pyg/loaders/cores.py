"""PyG's context managers for cores, as they apply to threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from manyhop.arguments import cpu_cores
from manyhop.errors import InputError


class CoreControl:
    """Which cores the threads of a loader run on, and how many of them one thread copies with."""

    num_workers: int
    loader_cores: list[Any]
    _old_worker_init_fn: Callable[[int], None]
    _copy_threads: int | None = None

    def _aff_init_fn(self, worker_id: int) -> None:
        """Bind the calling thread to its cores (``enable_cpu_affinity``)."""
        cores = self.loader_cores[worker_id]
        os.sched_setaffinity(0, cores if isinstance(cores, list) else [cores])
        self._old_worker_init_fn(worker_id)

    @contextmanager
    def enable_cpu_affinity(self, loader_cores: object = None) -> Iterator[None]:
        """Bind the threads to CPU cores: one core, or a list of cores, for each; default: the first cores.

        Raises:
            InputError: cores that are no lists of integers.
            ValueError: no workers, or not as many cores as workers.
        """
        if not hasattr(os, "sched_setaffinity"):
            raise InputError("Threads cannot be bound to cores on this system: leave enable_cpu_affinity out.")
        if loader_cores is not None:
            loader_cores = cpu_cores("loader_cores", loader_cores, nested=True)
        with super().enable_cpu_affinity(loader_cores):  # type: ignore[misc]  # a mixin of PyG has it
            yield

    @contextmanager
    def enable_multithreading(self, worker_threads: int | None = None) -> Iterator[None]:
        """Let each thread of the loader gather features with several threads: by default all cores, shared evenly.

        Raises:
            InputError: the loader has no threads, or each would get none or more than there are.
        """
        if self.num_workers == 0:
            raise InputError("Expected num_workers of at least 1 for 'enable_multithreading', got 0.")
        cores = torch.get_num_threads()
        wanted = max(1, cores // self.num_workers) if worker_threads is None else worker_threads
        if not 1 <= wanted <= cores:
            raise InputError(f"Expected 'worker_threads' from 1 to {cores} (torch.get_num_threads()), got {wanted}.")
        before, self._copy_threads = self._copy_threads, wanted
        try:
            yield
        finally:
            self._copy_threads = before
