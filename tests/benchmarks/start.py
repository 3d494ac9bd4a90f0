"""From the import to the first batch, in new processes, beside PyG's own loader.

``python -m benchmarks.start manyhop`` (or ``PyG``) is one such process.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt


def measure(library: str) -> None:
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


_COLUMNS = ("loader", "compiled kernels", "import", "construction", "first batch", "all", "all, wall clock")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=9, help="processes of each")


def main(options: argparse.Namespace, argv: list[str]) -> None:
    from benchmarks.common import opening, print_and_save, table, table_row  # imports what a process is to measure

    with tempfile.TemporaryDirectory() as kernels:
        _process("manyhop", kernels)  # keeps Python's byte code, as an installer does
        cold = [_process("manyhop", os.path.join(kernels, "cold"))]
        turns: dict[str, list[npt.NDArray[np.float64]]] = {"manyhop": [], "PyG": []}
        absent = []
        for _ in range(options.rounds):
            for library, processes in list(turns.items()):
                try:
                    processes.append(_process(library, kernels))
                except RuntimeError as error:
                    if library == "manyhop":
                        raise
                    del turns[library]
                    absent = [f"- PyG was not measured. {error}"]
    lines = [
        *opening("From the import to the first batch", argv),
        *absent,
        "",
        "`NeighborLoader` over 1,000 nodes, [10, 10], in new processes that have imported torch and PyG. CPU seconds;",
        f"medians of {options.rounds} processes in turns (least and most), one where kernels are compiled.",
        "",
        *table(_COLUMNS),
        table_row(_line("manyhop", "none yet", cold)),
        *(
            table_row(_line(library, "on disk" if library == "manyhop" else "-", rows))
            for library, rows in turns.items()
        ),
    ]
    print_and_save("\n".join(lines) + "\n", options.output, "start.md")


def _process(library: str, kernels: str) -> npt.NDArray[np.float64]:
    """``[3 steps, 2]``: CPU seconds and wall clock of one process whose compiled kernels lie in a folder."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"NUMBA_CACHE_DIR": kernels}
    command = [sys.executable, "-m", "benchmarks.start", library]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise RuntimeError(f"Expected {library}'s NeighborLoader to return a batch; its process ended with: {last}")
    return np.array(json.loads(done.stdout.splitlines()[-1]))


def _line(library: str, kernels: str, processes: list[npt.NDArray[np.float64]]) -> list[str]:
    steps = np.stack(processes)  # [processes, steps, 2]
    totals = steps.sum(axis=1)
    cells = [f"{seconds:.2f}" for seconds in np.median(steps[:, :, 0], axis=0)]
    for all_of_it in totals.T:
        span = f" ({all_of_it.min():.2f}-{all_of_it.max():.2f})" if len(totals) > 1 else ""
        cells.append(f"{np.median(all_of_it):.2f}{span}")
    return [library, kernels, *cells]


if __name__ == "__main__":
    measure(sys.argv[1])
