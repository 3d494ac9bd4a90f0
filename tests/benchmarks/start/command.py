"""``benchmarks start``: the command."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import numpy.typing as npt

from benchmarks.common.report import opening, print_and_save, table, table_row
from manyhop.errors import InputError

_COLUMNS = ("loader", "compiled kernels", "import", "construction", "first batch", "all", "all, wall clock")


def main(options: argparse.Namespace, argv: list[str]) -> int:
    """Measure what the arguments of ``benchmarks start`` specify; print, save."""
    with tempfile.TemporaryDirectory() as kernels:
        _process("manyhop", kernels)  # keeps Python's byte code, as an installer does
        cold = [_process("manyhop", os.path.join(kernels, "cold"))]
        turns: dict[str, list[npt.NDArray[np.float64]]] = {"manyhop": [], "PyG": []}
        absent = []
        for _ in range(options.rounds):
            for library, processes in list(turns.items()):
                try:
                    processes.append(_process(library, kernels))
                except InputError as error:
                    if library == "manyhop":
                        raise
                    del turns[library]
                    absent = [f"- PyG was not measured. {error}"]
    lines = [
        *opening("From the import to the first batch", ["start", *argv]),
        *absent,
        "",
        "`NeighborLoader` over 1,000 nodes, [10, 10], in new processes that have imported torch and PyG. CPU seconds;",
        f"medians of {options.rounds} processes in turns (least and most), one where kernels are compiled.",
        "",
        *table(_COLUMNS),
        _line("manyhop", "none yet", cold),
        *(_line(library, "on disk" if library == "manyhop" else "-", rows) for library, rows in turns.items()),
    ]
    print_and_save("\n".join(lines) + "\n", options.output, "start.md")
    return 0


def _process(library: str, kernels: str) -> npt.NDArray[np.float64]:
    """``[3 steps, 2]``: CPU seconds and wall clock of one process whose compiled kernels lie in a folder."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"NUMBA_CACHE_DIR": kernels}
    command = [sys.executable, "-m", "benchmarks.start.process", library]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise InputError(f"Expected {library}'s NeighborLoader to return a batch; its process ended with: {last}")
    return np.array(json.loads(done.stdout.splitlines()[-1]))


def _line(library: str, kernels: str, processes: list[npt.NDArray[np.float64]]) -> str:
    """One line of the table."""
    steps = np.stack(processes)  # [processes, steps, 2]
    totals = steps.sum(axis=1)
    cells = [f"{seconds:.2f}" for seconds in np.median(steps[:, :, 0], axis=0)]
    for all_of_it in totals.T:
        span = f" ({all_of_it.min():.2f}-{all_of_it.max():.2f})" if len(totals) > 1 else ""
        cells.append(f"{np.median(all_of_it):.2f}{span}")
    return table_row([library, kernels, *cells])
