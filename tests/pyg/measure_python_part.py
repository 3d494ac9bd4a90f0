"""Measures what Python does for a batch of a loader on a GPU, the PyG object and all, for one of fixed size, for one of
given seeds, and for a replay of a captured step: on a CPU, without any kernel and without CUDA's calls
(``host_part.py``).

PYTHONPATH=tests python tests/pyg/measure_python_part.py
"""

import os

os.environ["TRITON_INTERPRET"] = "1"  # the CPU stands for the GPU
os.environ["OMP_NUM_THREADS"] = "1"

import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import torch
from call_budget import Served
from host_part import loader_without_kernels, step_without_kernels

BATCHES, EPOCHS = 128, 40


def measure(what: str, batches: Iterable[Any], use: Callable[[Any], object]) -> None:
    """Print the time of each of the batches."""
    times = []
    for _ in range(EPOCHS):
        begin = time.thread_time()
        count = 0
        for batch in batches:
            use(batch)
            count += 1
        times.append(1e6 * (time.thread_time() - begin) / count)
    print(f"{median(times):.1f} us per {what} (least {min(times):.1f})")


def main() -> None:
    torch.set_num_threads(1)
    with loader_without_kernels(BATCHES) as loader:
        measure("batch", loader, lambda batch: None)
    with loader_without_kernels(BATCHES, pad="auto") as loader:
        measure("batch of fixed size", loader, lambda batch: None)
        step, kept = step_without_kernels(setattr), list(loader)
        for batch in kept:
            step(batch)
        measure("replay", kept, step)
    with loader_without_kernels(1, of_data=True) as loader:
        measure("batch of given seeds", Served(loader), lambda batch: None)
        loader.transform_sampler_output = lambda out: out
        measure("batch of given seeds with a function for its sample", Served(loader), lambda batch: None)


if __name__ == "__main__":
    main()
