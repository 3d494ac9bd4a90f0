"""Threads of OpenMP inside one call of a peer."""

from __future__ import annotations

from types import ModuleType

import torch

from benchmarks.common.measure import BatchRunner


def in_dgl_threads(dgl: ModuleType, threads: int, run: BatchRunner) -> BatchRunner:
    """Return a runner during which DGL and torch have this many threads, and one afterwards."""

    def limited(num_batches: int) -> int:
        try:
            torch.set_num_threads(threads)
            dgl.utils.set_num_threads(threads)
            return run(num_batches)
        finally:
            torch.set_num_threads(1)
            dgl.utils.set_num_threads(1)

    return limited
