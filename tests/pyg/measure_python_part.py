"""Measures what Python does for a batch of a loader on a GPU, the PyG object and all: on a CPU, without any kernel and
without CUDA's calls (``host_part.py``).

PYTHONPATH=tests python tests/pyg/measure_python_part.py
"""

import os

os.environ["TRITON_INTERPRET"] = "1"  # the CPU stands for the GPU
os.environ["OMP_NUM_THREADS"] = "1"

import time
from statistics import median

import torch
from host_part import loader_without_kernels

BATCHES, EPOCHS = 128, 40


def main() -> None:
    torch.set_num_threads(1)
    with loader_without_kernels(BATCHES) as loader:
        times = []
        for _ in range(EPOCHS):
            begin = time.thread_time()
            count = sum(1 for _ in loader)
            times.append(1e6 * (time.thread_time() - begin) / count)
    print(f"{median(times):.1f} us per batch (least {min(times):.1f})")


if __name__ == "__main__":
    main()
