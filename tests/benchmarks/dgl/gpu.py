"""``benchmarks dgl --gpu``: loaders and training steps on one GPU, and epochs under DDP on 1, 2, 4, ... of them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.common.machine import describe
from benchmarks.common.measure import (
    Absent,
    Timing,
    batch_time_ratio,
    by_workload,
    find,
    measure,
)
from benchmarks.common.report import Record, Section, Table, show
from benchmarks.dgl import training
from benchmarks.dgl.graphs import FANOUTS, FEATURES, Size, rmat, with_data

_BATCH = 1024
_TWO_LAYERS = [10, 10]
_STEPS = 2
"""Rounds of steps for each of loaders, of which DGL's take many times as long."""


def run(size: Size, argv: list[str], device: str = "cuda", workers: int = 8) -> Record:
    """Measure loaders that feed a GPU, training steps there, and epochs under DDP where there are two GPUs.

    What has been measured is printed to stderr at once.
    """
    began = time.perf_counter()

    def report(*lines: str) -> None:
        print(
            *(f"{time.perf_counter() - began:.0f} s: {line}" for line in lines), sep="\n", file=sys.stderr, flush=True
        )

    header = describe(["dgl", *argv])
    if device == "cuda":
        header.append(("GPU", f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"))
    torch.manual_seed(0)
    g = with_data(rmat(size.scale, size.num_edges, device))
    seeds = torch.randperm(g.num_nodes())[: _BATCH * size.batches]
    of_three, of_two = (
        training.Work(
            g=g, seeds=seeds, fanouts=fanouts, batch_size=_BATCH, device=torch.device(device), workers=workers
        )
        for fanouts in (FANOUTS, _TWO_LAYERS)
    )
    report("the graph is there")
    steps = measure(training.steps([of_two, of_three]), _STEPS * size.rounds, 0.0, progress=report)
    report(*map(_line, steps))
    loading = measure(training.loaders(of_three), size.rounds, 0.0, progress=report)
    report(*map(_line, loading))
    tables, absent = [_steps(steps)], []
    there = torch.cuda.device_count()
    if there >= 2:
        found = []
        for ranks in [number for number in (1, 2, 4, 8) if number <= there]:
            found.append(_under_ddp(size, ranks))
            report(f"epochs under DDP: {found[-1]}")
        tables.append(epochs(found))
    else:
        absent.append(Absent(name="DDP, features sharded by WholeGraph", reason="needs two GPUs"))
    title = f"Whole DataLoader, {FEATURES} float32 features per node, up to blocks on the GPU"
    return Record(
        title=f"DGL on a GPU: R-MAT, {g.num_nodes():,} nodes, {g.num_edges():,} edges, batches of {_BATCH:,}",
        header=header,
        sections=[Section(title=title, timings=loading)],
        tables=tables,
        absent=absent,
        base_workload="loader",
    )


def _line(timing: Timing) -> str:
    return f"{timing.workload}, {timing.name}: {timing.ms_per_batch:.2f} ms per batch"


def _steps(timings: Sequence[Timing]) -> Table:
    """Steps of DGL's layers beside those of PyG's, in the same rounds."""
    rows = []
    for workload in by_workload(timings):
        ours, theirs = (find(timings, workload, name, 1) for name in (training.DGLS_LAYERS, training.PYGS_LAYERS))
        assert ours is not None
        assert theirs is not None
        ratio = show(batch_time_ratio(ours, theirs))
        rows.append([workload, f"{ours.ms_per_batch:.2f}", f"{theirs.ms_per_batch:.2f}", ratio])
    columns = "step", "DGL's layers, ms", "PyG's layers, ms", "DGL's time, PyG's = 1"
    return Table(title="Training on manyhop's loaders, loading included", columns=columns, rows=rows)


def _under_ddp(size: Size, ranks: int) -> dict[str, Any]:
    """Run epochs on some ranks."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    arguments = [f"--{name}={getattr(size, name.replace('-', '_'))}" for name in ("scale", "num-edges", "rounds")]
    arguments += [f"--batches={size.batches}", f"--batch-size={_BATCH}"]
    command = [*torchrun, "-m", "benchmarks.dgl.worker", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{ranks} ranks failed:\n{done.stdout}{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def epochs(found: Sequence[dict[str, Any]]) -> Table:
    """Return the table of what :mod:`benchmarks.dgl.worker` gave."""
    rows = [
        [str(one["ranks"]), one["placement"], *(f"{one[name]:.2f}" for name in ("ms", "medges_per_s", "loss"))]
        for one in found
    ]
    columns = "GPUs", "features", "ms per step", "M edges/s of all GPUs", "loss at the end"
    return Table(title="An epoch of SAGE, 3 x 256, under DDP", columns=columns, rows=rows)
