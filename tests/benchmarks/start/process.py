"""One process of ``benchmarks start``: prints, as JSON, what each step took until the first batch.

Usage: ``python -m benchmarks.start.process manyhop`` or ``... PyG``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from itertools import pairwise
from typing import Any


def main(library: str) -> None:
    """Import torch and PyG, then measure: the import of the library, a loader's construction, its first batch."""
    import torch
    from torch_geometric.data import Data

    draw = torch.Generator().manual_seed(0)
    edge_index = torch.randint(1000, (2, 10_000), generator=draw)
    data = Data(x=torch.rand(1000, 16, generator=draw), edge_index=edge_index)
    stamps = [_now()]
    module: Any = importlib.import_module("manyhop_pyg" if library == "manyhop" else "torch_geometric.loader")
    stamps.append(_now())
    loader = module.NeighborLoader(data, num_neighbors=[10, 10], batch_size=64)
    stamps.append(_now())
    next(iter(loader))
    stamps.append(_now())
    print(json.dumps([[b - a for a, b in zip(*pair, strict=True)] for pair in pairwise(stamps)]))


def _now() -> tuple[float, float]:
    """CPU seconds of this process and of those that it waited for; wall clock."""
    return sum(os.times()[:4]), time.perf_counter()


if __name__ == "__main__":
    main(sys.argv[1])
