"""``manyhop bench disk``: the command."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from manyhop.errors import InputError
from manyhop.files.disk_room import writing
from manyhop.graph import HOMOGENEOUS_NODE
from manyhop.sampling import BatchKey, CPUSampler, NeighborSpec, NodeRequest
from manyhop.system.units import in_units
from manyhop_bench.common.graphs import homogeneous
from manyhop_bench.common.machine import describe
from manyhop_bench.disk.memory_limit import memory_limit
from manyhop_bench.disk.worker import CACHED, HOT, MAPPED, NUMPY, RANDOM

_WIDTH = 128  # int32: rows of 512 bytes
_DEGREE = 10
_FANOUT, _BATCH_SIZE, _COUNTED, _BATCHES = (10, 10), 1024, 64, 128


def main(options: argparse.Namespace, argv: list[str]) -> int:
    """Measure what the arguments of ``manyhop bench disk`` specify; print, save."""
    if options.gpu and not torch.cuda.is_available():
        raise InputError("Expected a CUDA device for --gpu, found none. Leave it out to measure host memory.")
    num_rows = options.times * options.memory // (4 * _WIDTH)
    if num_rows < 10 * _BATCH_SIZE:
        raise InputError(f"Expected a file of at least {10 * _BATCH_SIZE} rows, got {num_rows}. Raise --memory.")
    with tempfile.TemporaryDirectory(dir=options.folder) as name, memory_limit(options.memory) as processes:
        folder = Path(name)
        with writing(folder / "x.npy", 4 * _WIDTH * num_rows):
            _write_rows(folder / "x.npy", num_rows)
        counted = _write_ids(folder / "ids.npy", num_rows)
        job = {
            "file": str(folder / "x.npy"),
            "ids": str(folder / "ids.npy"),
            "counted": counted,
            "cache": options.memory // 2,
            "gpu": options.gpu,
            "processes": None if processes is None else str(processes),
            "pages": options.memory if processes is None else None,
            "warm_up": options.seconds,
            "seconds": options.seconds,
        }
        found: dict[str, list[dict[str, float]]] = {}
        for _ in range(options.rounds):
            for reader in (NUMPY, RANDOM, *((CACHED, HOT) if options.gpu else (MAPPED, CACHED))):
                found.setdefault(reader, []).append(_measure(job | {"name": reader}))
    text = _table(options, argv, num_rows, processes is not None, found)
    print(text, end="")
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / ("disk-gpu.md" if options.gpu else "disk.md")).write_text(text)
    return 0


def _write_rows(path: Path, num_rows: int) -> None:
    """Row ``i`` has ``i`` in all places."""
    rows = np.lib.format.open_memmap(path, "w+", np.int32, (num_rows, _WIDTH))
    step = 1 << 16
    for begin in range(0, num_rows, step):
        part = rows[begin : begin + step]
        part[:] = np.arange(begin, begin + len(part), dtype=np.int32)[:, None]
    rows.flush()


def _write_ids(path: Path, num_rows: int) -> int:
    """Write the nodes of sampled batches, one after the other; returns how many those have by which a cache is filled.

    Seeds are drawn from a tenth of the nodes.
    """
    graph = homogeneous(num_rows, _DEGREE * num_rows, attributes=False).engine
    sampler = CPUSampler(graph, NeighborSpec(fanouts=dict.fromkeys(graph.edge_types, _FANOUT)))
    rng, batches = np.random.default_rng(0), []
    train = rng.choice(num_rows, num_rows // 10, replace=False)
    for batch in range(_BATCHES):
        seeds = torch.from_numpy(rng.choice(train, _BATCH_SIZE, replace=False))
        sample = sampler.sample(NodeRequest(key=BatchKey(0, 0, batch), seeds={HOMOGENEOUS_NODE: seeds}))
        batches.append(sample.node[HOMOGENEOUS_NODE].numpy())
    np.save(path, np.concatenate(batches))
    return sum(map(len, batches[:_COUNTED]))


def _measure(job: dict[str, object]) -> dict[str, float]:
    """What one process finds."""
    command = [sys.executable, "-m", "manyhop_bench.disk.worker"]
    done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"signal {-done.returncode}: out of memory?"])[-1]
        raise InputError(f"Expected {job['name']} to read rows; its process ended with: {last}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _table(
    options: argparse.Namespace,
    argv: list[str],
    num_rows: int,
    is_limited: bool,
    found: dict[str, list[dict[str, float]]],
) -> str:
    how = (
        "control group"
        if is_limited
        else "no rights to make a control group: all pages of the file are dropped when they and the memory of the "
        "process exceed the limit"
    )
    limit = f"{in_units(options.memory)} per process, page cache included ({how})"
    cache = f"{in_units(options.memory // 2)}, half of the limit"
    if options.gpu:
        cache = f"{cache}, in host memory, and of as much on the GPU"
    lines = ["# Rows of a file that is larger than memory", ""]
    lines += [f"- {label}: {value}" for label, value in describe(["disk", *argv])]
    lines += [
        f"- memory limit: {limit}",
        "",
        f"A file of {num_rows:,} rows of {4 * _WIDTH} bytes ({in_units(4 * _WIDTH * num_rows)}); a cache of {cache}.",
        *(["All rows go to the GPU; those of numpy through pinned memory."] if options.gpu else []),
        f"Rows are those of batches {list(_FANOUT)} of {_BATCH_SIZE:,} seeds on a power-law graph, seeds from a tenth",
        f"of the nodes; the cache is filled by {_COUNTED} other batches. Each reader has a process of its own, with",
        f"{options.seconds:g} s before the {options.seconds:g} s that count; medians of {options.rounds} rounds.",
        "",
        "| reader | rows/s | as numpy.memmap | found in the cache | s to fill it |",
        "|---|---|---|---|---|",
    ]
    base = float(np.median([each["rows_per_s"] for each in found[NUMPY]]))
    for reader, rounds in found.items():
        speeds = [each["rows_per_s"] for each in rounds]
        hits, fill = (float(np.median([each[key] for each in rounds])) for key in ("hit_rate", "fill_s"))
        cache = f"{hits:.0%} | {fill:.1f}" if reader in (CACHED, HOT) else "- | -"
        lines.append(
            f"| {reader} | {np.median(speeds):,.0f} ({min(speeds):,.0f}-{max(speeds):,.0f}) | "
            f"{np.median(speeds) / base:.1f} x | {cache} |"
        )
    return "\n".join(lines) + "\n"
