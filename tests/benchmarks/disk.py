"""Rows of a mapped file that is larger than the memory of a process, with a cache of hot rows, beside ``numpy.memmap``.

``--gpu``: rows that go to a GPU, which keeps hot rows, too; ``--ranks``: one cache for all ranks of a node beside a
smaller one for each. The limit is a control group: without the right to make one (root), there is none, which the
record says.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import homogeneous, opening, print_and_save, table
from benchmarks.disk_reader import CACHED, HOT, MAPPED, NUMPY, PRIVATE, RANDOM, SHARED
from manyhop.errors import InputError
from manyhop.files.disk_room import writing
from manyhop.graph import HOMOGENEOUS_NODE
from manyhop.sampling import BatchKey, CPUSampler, NeighborSpec, NodeRequest
from manyhop.system.units import in_units, parse_bytes

_VERSION_1 = Path("/sys/fs/cgroup/memory")
_VERSION_2 = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def memory_limit(nbytes: int) -> Iterator[Path | None]:
    """Make a control group of so many bytes; yields its file for the ids of processes, ``None`` where it may not be."""
    folder, name = (
        (_VERSION_1, "memory.limit_in_bytes") if (_VERSION_1 / "cgroup.procs").exists() else (_VERSION_2, "memory.max")
    )
    with _control_of_memory(folder / "cgroup.subtree_control"):
        yield from _group(folder, name, nbytes)


def _group(folder: Path, name: str, nbytes: int) -> Iterator[Path | None]:
    group = folder / f"manyhop-bench-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    try:
        try:
            (group / name).write_text(str(nbytes))
            processes: Path | None = group / "cgroup.procs"
        except OSError:
            processes = None
        yield processes
    finally:
        for _ in range(50):  # a process that has ended leaves it a moment later
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


@contextlib.contextmanager
def _control_of_memory(file: Path) -> Iterator[None]:
    """Let groups of version 2 limit memory in the body, where their parent does not allow it so far."""
    added = False
    with contextlib.suppress(OSError):
        if "memory" not in file.read_text().split():
            file.write_text("+memory")
            added = True
    try:
        yield
    finally:
        if added:
            with contextlib.suppress(OSError):  # another group needs it by now
                file.write_text("-memory")


_PIPE = subprocess.PIPE
_WIDTH = 128  # int32: rows of 512 bytes
_DEGREE = 10
_FANOUT, _BATCH_SIZE, _COUNTED, _BATCHES = (10, 10), 1024, 64, 128


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--gpu", action="store_true", help="rows that go to a GPU")
    add("--ranks", type=int, default=1, help="processes that read at the same time")
    add("--memory", type=parse_bytes, default=1 << 30, help="limit of all of them (1GiB)")
    add("--times", type=int, default=4, help="size of the file, in limits")
    add("--seconds", type=float, default=15.0, help="that each reader reads")
    add("--rounds", type=int, default=2)
    add("--folder", type=Path, help="where the file is made (the system's)")


def main(options: argparse.Namespace, argv: list[str]) -> None:
    if options.gpu and not torch.cuda.is_available():
        raise InputError("Expected a CUDA device for --gpu, found none. Leave it out to measure host memory.")
    if options.gpu and options.ranks > 1:
        raise InputError(f"Expected one rank with --gpu, got --ranks {options.ranks}. Leave out one of them.")
    num_rows = options.times * options.memory // (4 * _WIDTH)
    if num_rows < 10 * _BATCH_SIZE:
        raise InputError(f"Expected a file of at least {10 * _BATCH_SIZE} rows, got {num_rows}. Raise --memory.")
    with tempfile.TemporaryDirectory(dir=options.folder) as name, memory_limit(options.memory) as processes:
        if processes is None and options.ranks > 1:
            raise InputError(
                "Expected the right to make a control group, which bounds the memory of all ranks together, got none. "
                "Run this as root, or without --ranks."
            )
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
            "warm_up": options.seconds,
            "seconds": options.seconds,
            "ranks": options.ranks,
        }
        found: dict[str, list[dict[str, float]]] = {}
        for _ in range(options.rounds):
            for reader in _readers(options):
                found.setdefault(reader, []).append(_measure(job | {"name": reader}, options.ranks))
    text = _table(options, argv, num_rows, processes is not None, found)
    name = "disk-gpu.md" if options.gpu else "disk.md" if options.ranks == 1 else "disk-ranks.md"
    print_and_save(text, options.output, name)


def _readers(options: argparse.Namespace) -> tuple[str, ...]:
    """Return what is measured; speeds are compared with that of the first."""
    if options.ranks > 1:
        return RANDOM, PRIVATE, SHARED
    return (NUMPY, RANDOM, CACHED, HOT) if options.gpu else (NUMPY, RANDOM, MAPPED, CACHED)


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


def _measure(job: dict[str, Any], ranks: int) -> dict[str, float]:
    """Return what processes find that read at the same time: rows of all of them, the mean share of rows found."""
    command = [sys.executable, "-m", "benchmarks.disk_reader"]
    if job["name"] == PRIVATE:
        job = job | {"cache": job["cache"] // ranks}
    processes = []
    for rank in range(ranks):
        env = os.environ | (_launched(rank, ranks) if job["name"] == SHARED else {})
        process = subprocess.Popen(command, env=env, text=True, stdin=_PIPE, stdout=_PIPE, stderr=_PIPE)
        processes.append(process)
        _send(process, json.dumps(job | {"rank": rank}))
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()  # it has filled its cache, or has ended
    for process in processes:
        _send(process, "read")
    every: list[dict[str, float]] = []
    ends = [process.communicate() for process in processes]
    for process, (out, errors) in zip(processes, ends, strict=True):
        if process.returncode:
            last = (errors.strip().splitlines() or [f"signal {-process.returncode}: out of memory?"])[-1]
            raise InputError(f"Expected {job['name']} to read rows; its process ended with: {last}")
        every.append(json.loads(out.splitlines()[-1]))
    speeds, hits, fills = zip(*((one["rows_per_s"], one["hit_rate"], one["fill_s"]) for one in every), strict=True)
    return {"rows_per_s": sum(speeds), "hit_rate": sum(hits) / ranks, "fill_s": max(fills)}


def _send(process: subprocess.Popen[str], line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # it has ended, which its exit status shows
        print(line, file=process.stdin, flush=True)


def _launched(rank: int, ranks: int) -> dict[str, str]:
    """Return the variables of ranks that were started together; nobody listens at the port, which names them."""
    of_rank = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return {name: str(value) for name, value in of_rank.items()} | {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(os.getpid()),
    }


def _table(
    options: argparse.Namespace,
    argv: list[str],
    num_rows: int,
    is_limited: bool,
    found: dict[str, list[dict[str, float]]],
) -> str:
    how = "control group" if is_limited else "not enforced: no rights to make a control group"
    several = options.ranks > 1
    whose = f"for {options.ranks} processes together" if several else "per process"
    limit = f"{in_units(options.memory)} {whose}, page cache included ({how})"
    cache = f"{in_units(options.memory // 2)}, half of the limit"
    if several:
        cache = f"{cache}: one for all ranks, or a part of it for each"
    if options.gpu:
        cache = f"{cache}, in host memory, and of as much on the GPU"
    lines = [
        *opening("Rows of a file that is larger than memory", argv),
        f"- memory limit: {limit}",
        "",
        f"A file of {num_rows:,} rows of {4 * _WIDTH} bytes ({in_units(4 * _WIDTH * num_rows)}); a cache of {cache}.",
        *(["All rows go to the GPU; those of numpy through pinned memory."] if options.gpu else []),
        f"Rows are those of batches {list(_FANOUT)} of {_BATCH_SIZE:,} seeds on a power-law graph, seeds from a tenth",
        f"of the nodes; the cache is filled by {_COUNTED} other batches. Each reader has "
        f"{f'{options.ranks} processes' if several else 'a process'} of its own, with",
        f"{options.seconds:g} s before the {options.seconds:g} s that count; medians of {options.rounds} rounds.",
        *(["Each process reads its part of the batches; rows/s are those of all."] if several else []),
        "",
        *table(("reader", "rows/s", f"as {_readers(options)[0]}", "found in the cache", "s to fill it")),
    ]
    base = float(np.median([each["rows_per_s"] for each in found[_readers(options)[0]]]))
    for reader, rounds in found.items():
        speeds = [each["rows_per_s"] for each in rounds]
        hits, fill = (float(np.median([each[key] for each in rounds])) for key in ("hit_rate", "fill_s"))
        cache = f"{hits:.0%} | {fill:.1f}" if reader in (CACHED, HOT, PRIVATE, SHARED) else "- | -"
        lines.append(
            f"| {reader} | {np.median(speeds):,.0f} ({min(speeds):,.0f}-{max(speeds):,.0f}) | "
            f"{np.median(speeds) / base:.1f} x | {cache} |"
        )
    return "\n".join(lines) + "\n"
